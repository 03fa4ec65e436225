"""What the page asks of simulator and cost model, and what they answer: messages alone."""
