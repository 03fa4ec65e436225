"""Embeddings and scores: encoders, pooling, and what a checkpoint puts after it."""
