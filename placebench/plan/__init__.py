"""What is asked for becomes a plan that can run, or every reason why it cannot."""
