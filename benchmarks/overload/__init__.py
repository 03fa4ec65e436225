"""Servers beyond their capacity, and long prompts among chats."""
