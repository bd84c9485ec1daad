"""Lossless image compression by a diffusion model, whose file sizes verify its likelihood bound."""
