"""What the benchmarks and the simulator know alike of requests: lengths and recorded times."""
