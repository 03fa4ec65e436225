"""Drafts: guesses of the next tokens, which a request's next step verifies."""
