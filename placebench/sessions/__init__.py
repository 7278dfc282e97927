"""Where workers run: a Ray of the launch's own, an existing Ray cluster, torchrun."""
