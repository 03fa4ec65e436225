"""Clients' JSON schemas: what of them is enforced, and how large they may be."""
