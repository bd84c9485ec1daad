"""What every room may use: errors, specs, atomic files, seeds, numbers that are one or many, checks of what users hand in."""
