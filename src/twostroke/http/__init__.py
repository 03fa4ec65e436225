"""What is bounded before any key is looked at: heads, bodies, pace and hosts.

It knows neither routes nor dialects: how a refusal looks to a client is handed in (``Refuse``).
"""
