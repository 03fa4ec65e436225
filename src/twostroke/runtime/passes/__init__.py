"""How the hidden states of a step come to be."""
