"""One description of a model: its layers, bytes and FLOPs, and where its files are. Torch-free."""
