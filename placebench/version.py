"""The version of the package; below all else, so that whoever asks for it imports nothing with it."""

__version__ = "0.2.0"
