"""Attention backends: one file each, behind the protocols in `base`."""
