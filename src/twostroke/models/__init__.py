"""Decoders: what all share (`decoder`), the kinds of branches, and one file per ``model_type``."""
