"""What was measured, out of the run's folder: in Python, in other tools, and in a file to give away."""
