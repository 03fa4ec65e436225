"""Compiled CPU kernels: linear layers over packed weights, paged attention, and all in between."""
