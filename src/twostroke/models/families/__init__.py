"""The families of checkpoints: one file for those that are named and made alike."""
