"""What a front end sees of an engine, wherever it runs, and the engine on a thread."""
