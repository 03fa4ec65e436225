"""A model's files behind one seam, whatever their format."""
