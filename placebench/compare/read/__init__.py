"""Run folders read into frames."""
