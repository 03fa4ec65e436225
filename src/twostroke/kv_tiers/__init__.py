"""Places for KV blocks below the executor's memory: host memory and disk."""
