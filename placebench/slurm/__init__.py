"""Running under SLURM: the batch script, and what it starts on the nodes of its allocation."""
