"""GGUF files: written from safetensors folders, and read beside llama.cpp."""
