"""Readers of training logs: one module a format, one registry, text to the same tidy frame."""
