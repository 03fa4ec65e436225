"""The HTTP front end over an ``EngineClient``. Imports no torch, and knows nothing of models.

``state/`` is the served model and the server's life, ``http/`` the transport, ``generation/`` runs
a call on the engine, and each API has a room of its own (``openai/``): its routes, request objects
and answer objects.
"""
