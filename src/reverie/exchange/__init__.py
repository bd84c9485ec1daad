"""Export and import of models: ONNX files, HTML pages, diffusers folders and hub folders."""
