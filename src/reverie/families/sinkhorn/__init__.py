"""A generator trained by the cost of transport from its samples to the data."""
