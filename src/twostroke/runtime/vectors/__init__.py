"""Embeddings and scores: encoders, pooling, and what a checkpoint puts behind it."""
