"""Steered sampling: editing, inversion, interpolation, illusions, inpainting and restoration."""
