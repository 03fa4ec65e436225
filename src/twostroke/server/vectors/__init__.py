"""Embeddings in the dialects of Cohere and of Hugging Face's text-embeddings-inference (TEI)."""
