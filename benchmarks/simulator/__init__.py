"""Fits and validates the simulator's cost model on public measurements."""
