"""Decoders of transformers by their own code, over our paged cache."""
