"""Checkpoints of quantised linear layers: what their config says, and their tensors unpacked."""
