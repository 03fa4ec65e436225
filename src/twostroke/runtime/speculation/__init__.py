"""Drafts on a device: what proposes them, and what verifies them."""
