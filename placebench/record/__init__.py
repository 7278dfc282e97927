"""The files of a run: where they lie, what stands in them, reading them back."""
