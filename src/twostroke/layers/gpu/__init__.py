"""Layers' operators on a GPU: they allocate, choose tile sizes, and launch ``kernels/triton``."""
