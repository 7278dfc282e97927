"""What this host has and runs: devices, GPUs, processes, who owns them, signals."""
