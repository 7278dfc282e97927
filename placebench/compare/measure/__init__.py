"""Numbers of launches: steps cut into segments, samples joined to phases."""
