"""Targets: what good is, how often it is missed over sliding windows, and by which requests."""
