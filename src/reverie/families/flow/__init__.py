"""Normalising flows: invertible maps of data to noise, whose density is exact and which go both ways."""
