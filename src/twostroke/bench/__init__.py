"""Load and its measurement: workloads, an OpenAI client, metrics, reports; no torch."""
