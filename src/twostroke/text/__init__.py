"""Text to tokens and back: tokenizer, detokenizer, stop strings, chat template, context."""
