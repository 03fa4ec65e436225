"""One script for each engine, run by that engine's own Python; see ``protocol.py``."""
