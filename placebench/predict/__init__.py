"""Arithmetic on the step graph: memory, times of phases, the walk. Pure."""
