"""Pictures, contact sheets, curves and films: arrays in, files out."""
