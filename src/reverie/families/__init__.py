"""Model families: each one file with a loss and a sampler."""
