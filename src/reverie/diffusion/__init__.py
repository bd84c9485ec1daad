"""Diffusion models: schedules, pairs, denoisers, losses, samplers, guidance, inverse problems and likelihoods."""
