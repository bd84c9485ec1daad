"""Lossless compression of images by a model: proof that its bits are bits."""
