"""What speculation gives: every method, the break-even, and what drafts cost in vain."""
