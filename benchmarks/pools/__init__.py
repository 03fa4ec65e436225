"""Pools of replicas that grow and shrink."""
