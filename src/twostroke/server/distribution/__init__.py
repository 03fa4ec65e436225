"""``/v1/inspect/distribution``: what the next token is drawn from."""
