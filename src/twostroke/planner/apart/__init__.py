"""Prefill and decode apart: two kinds of replicas, and blocks that move between them."""
