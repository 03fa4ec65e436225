"""Scores of pairs of texts and rankings of documents, in the forms of vLLM, Jina and Cohere."""
