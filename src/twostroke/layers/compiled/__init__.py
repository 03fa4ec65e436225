"""Layers, and all of them together, by the compiled kernels: bfloat16 on a CPU."""
