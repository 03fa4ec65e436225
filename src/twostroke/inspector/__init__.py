"""The page that shows what an engine does: its feed, its state, its static files."""
