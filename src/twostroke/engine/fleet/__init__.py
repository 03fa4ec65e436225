"""Pools of engines on this machine, which grow, shrink and change while they serve."""
