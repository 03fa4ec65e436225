"""What an answer may be: JSON schemas, expressions and grammars, as masks over the vocabulary."""
