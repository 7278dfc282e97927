"""Rounds of launches: one launch, its processes, failures, progress, the display, the manifest."""
