"""Files of requests: OpenAI's batch lines in, its output lines out, resumable."""
