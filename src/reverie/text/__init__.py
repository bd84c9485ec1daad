"""Text as numbers: tokenizers, and how byte-pair encoding learns."""
