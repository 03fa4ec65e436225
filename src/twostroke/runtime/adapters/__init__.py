"""LoRA adapters in a running model."""
