"""What happened in each step: events, their recorder, Prometheus metrics and Chrome traces."""
