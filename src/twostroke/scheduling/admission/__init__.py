"""Early refusal: which requests would miss their TTFT targets, known when they arrive. Pure."""
