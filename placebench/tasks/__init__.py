"""What is trained on: data, rewards, the sandbox for code tests, the tokenizer."""
