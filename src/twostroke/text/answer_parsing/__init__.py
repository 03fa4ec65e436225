"""What a model writes, as parts of an answer: reasoning, content and tool calls, as they come."""
