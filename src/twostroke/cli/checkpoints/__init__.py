"""Commands about checkpoints: which of them run, and how they are rounded."""
