"""Ollama's dialect: chats, single prompts, embeddings, and what is said of the model."""
