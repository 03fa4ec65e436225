"""The engine in a process of its own, and a front end that outlives it."""
