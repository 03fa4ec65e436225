"""What a server knows of itself: the model it serves, and where it is in its life."""
