"""Answers that have a form: each followed token by token, their masks computed beside the pass."""
