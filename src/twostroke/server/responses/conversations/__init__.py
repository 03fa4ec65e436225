"""Conversations: items that are kept under an id, and go before those of a request."""
