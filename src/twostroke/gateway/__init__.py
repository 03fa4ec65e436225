"""API keys, rate limits, and tenants kept apart. Sees HTTP and protocols."""
