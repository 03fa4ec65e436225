"""LoRA adapters as PEFT saves them."""
