"""Autoregressive models: each number of a datum from those before it, so that the likelihood is exact."""
