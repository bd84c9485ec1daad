"""Normalising flows: invertible maps of data to noise with an exact density."""
