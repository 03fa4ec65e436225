"""Addresses, and proofs that both ends of a connection have one secret."""
