"""What the operator sets above the checkpoint: the chat template, its variables, sampling."""
