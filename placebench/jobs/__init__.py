"""What a launch starts."""
