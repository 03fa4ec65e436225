"""Runs a model: weights, KV tensors, input batch and the executor that the engine drives."""
