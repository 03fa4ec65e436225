"""Kinds of layers against what bounds them."""
