"""What several processes need to compute one model together."""
