"""Sequence-to-sequence models of pairs of texts."""
