"""The loop: schedule, execute, update; and the ways to drive it (``LLM``, ``AsyncEngine``)."""
