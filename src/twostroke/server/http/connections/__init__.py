"""What a connection to a client is bounded by."""
