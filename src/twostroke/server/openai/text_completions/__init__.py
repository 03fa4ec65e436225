"""Completions of plain texts, as OpenAI had them before chats."""
