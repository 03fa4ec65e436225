"""The prefix cache over HTTP: what it holds, pins, and a stream of its changes."""
