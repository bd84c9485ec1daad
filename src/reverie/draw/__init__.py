"""Drawing: images, contact sheets, curves and films as files."""
