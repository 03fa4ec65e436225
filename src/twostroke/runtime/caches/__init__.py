"""How large the KV cache is, and its allocation."""
