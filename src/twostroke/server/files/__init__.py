"""Files that clients send and get: a store, forms that are read as they come, OpenAI's routes."""
