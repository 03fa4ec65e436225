"""Simulated engines behind a router, on a virtual clock."""
