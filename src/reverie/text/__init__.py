"""Tokenizers, byte-pair encoding and substring search."""
