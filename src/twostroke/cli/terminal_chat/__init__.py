"""The chat in the terminal: its lines, commands, and how answers are drawn."""
