"""The planner against measured servers."""
