"""Utilities for every package: errors, specs, files, tensors, seeds, scalars, distances, input checks."""
