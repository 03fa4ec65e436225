"""The transport: connections, request bodies, server-sent events, errors, health, life cycle."""
