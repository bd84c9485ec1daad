"""Autoencoders and variational autoencoders: networks that go through a latent and back."""
