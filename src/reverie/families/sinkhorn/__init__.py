"""A generator that is trained by what it costs to move its samples to the data."""
