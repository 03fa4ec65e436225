"""How flags are written: sizes, times, JSON, and those of vLLM."""
