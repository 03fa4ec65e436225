"""Static beside continuous: what was served, replayed in the simulator under other settings."""
