"""Which tokens of which requests run in the next step, and why. Pure: no clock, no tensors, no
randomness.
"""
