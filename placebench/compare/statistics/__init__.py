"""Estimates, ratios and intervals over launches."""
