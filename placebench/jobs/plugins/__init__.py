"""Modules for the user's environment, where a framework loads them by name: they import nothing of placebench."""
