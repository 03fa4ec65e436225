"""OpenAI's API, with vLLM's extensions: routes, request objects and answer objects."""
