"""What a plan looks like: on a terminal, as JSON, as a page."""
