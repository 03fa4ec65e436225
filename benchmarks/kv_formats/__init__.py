"""What formats of the KV cache cost in quality (`quality`) and save in time (`speed`)."""
