"""Fits and validates the simulator's cost model on public measurements, which are read from beside
the checkout.
"""
