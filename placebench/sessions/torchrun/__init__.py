"""Running a launch's workers as ranks of torchrun, without Ray: their processes, the calls to them, nodes of SLURM."""
