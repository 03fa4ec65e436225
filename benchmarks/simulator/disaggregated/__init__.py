"""Prefill and decode apart: measured servers, and where it pays."""
