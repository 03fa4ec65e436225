"""Anthropic's dialect: Messages, the count of their tokens, and its list of models."""
