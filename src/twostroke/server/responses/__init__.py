"""OpenAI's Responses API: its items, its events, and the responses that are stored."""
