"""What the pages Plan and Doctor ask."""
