"""Which hardware serves a workload within its targets, and what it costs."""
