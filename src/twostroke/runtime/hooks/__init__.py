"""What joins a step beside model, KV cache and sampler; ``make_hooks.py`` puts them in order."""
