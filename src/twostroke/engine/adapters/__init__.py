"""Which LoRA adapters an engine has, by name."""
