"""Tools in OpenAI's chat: what requests say of them, and what answers do."""
