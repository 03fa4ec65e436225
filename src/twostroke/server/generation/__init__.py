"""One call on the engine, whatever the API: text to tokens, requests, outputs, the answer's way."""
