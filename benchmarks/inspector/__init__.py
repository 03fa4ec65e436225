"""What the inspector costs, and how it looks."""
