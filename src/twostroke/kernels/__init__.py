"""Compiled kernels for CPUs: linear layers over packed weights, paged attention, and the small
steps between.
"""
