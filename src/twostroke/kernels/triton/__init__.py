"""Kernels for GPUs in Triton, one subject a file: no torch here, callers allocate (``layers/gpu``).

Each has a plain reference that it is tested against: the PyTorch path of the layer that calls it.
"""
