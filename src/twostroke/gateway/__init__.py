"""Who may ask, how much, and on whose behalf: API keys, rate limits, tenants kept apart. Sees HTTP
and protocols.
"""
