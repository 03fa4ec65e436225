"""Answers whose engine is killed."""
