"""Checkpoints before and while they are loaded: what they are, and whose code runs them."""
