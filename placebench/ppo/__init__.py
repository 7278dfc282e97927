"""The training job: PPO of a causal language model on Ray actors, placed as a placement says."""
