"""Step events as frames: columns of numbers, merged to what a screen shows."""
