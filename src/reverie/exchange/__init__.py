"""Models leave the house and come in: ONNX, one HTML page, diffusers, folders for a hub."""
