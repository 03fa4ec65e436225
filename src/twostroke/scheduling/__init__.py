"""Which tokens of which requests run in the next step, and why.

This part is pure: it has no clock, no tensors and no randomness.
"""
