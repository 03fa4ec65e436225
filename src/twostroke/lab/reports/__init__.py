"""Experiments on a terminal, as a page, and as plots."""
