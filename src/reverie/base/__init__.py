"""What every room may use: errors, specs, files, tensors, seeds, scalars, distances, checks of input."""
