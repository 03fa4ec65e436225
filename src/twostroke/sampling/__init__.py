"""From logits to tokens: filters, draws, log-probabilities, and a naive reference for all of it."""
