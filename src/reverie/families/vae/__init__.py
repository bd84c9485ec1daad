"""Autoencoders and variational autoencoders."""
