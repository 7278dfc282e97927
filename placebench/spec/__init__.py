"""Vocabulary, pure: placements, workloads, the step graph, shapes of models, devices as data."""
