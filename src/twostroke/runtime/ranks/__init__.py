"""Tensor parallel: the first process has the executor, the others compute their share of passes."""
