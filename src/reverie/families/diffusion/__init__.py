"""Denoising diffusion."""
