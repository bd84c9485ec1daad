"""Autoregressive models: each value of a datum given those before it, with an exact likelihood."""
