"""The HTTP front end: OpenAI's routes over an ``EngineClient``. Imports no torch, and knows nothing
of models.
"""
