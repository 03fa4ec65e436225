"""Traces: what happened to each request, from its arrival to its last byte, for OpenTelemetry."""
