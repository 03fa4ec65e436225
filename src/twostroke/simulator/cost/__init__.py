"""How long a step takes on given hardware."""
