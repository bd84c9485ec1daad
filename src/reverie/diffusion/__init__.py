"""The heart: schedules, pairs, denoisers, losses, samplers, guidance, inverse problems and likelihoods."""
