"""Runs of equal decode steps, taken in one go."""
