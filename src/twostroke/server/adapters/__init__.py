"""Routes that load adapters and unload them."""
