"""What the GGUF files of some families say otherwise than those of all others."""
