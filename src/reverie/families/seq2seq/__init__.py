"""Sequence to sequence: families whose data are pairs of texts, and which answer a source by a target."""
