"""What pilot learns after the bank: tools, leaving after its first layers, and Medusa heads."""
