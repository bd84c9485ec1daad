"""Networks.  They know nothing of diffusion: data, a noise level and a label in, data out."""
