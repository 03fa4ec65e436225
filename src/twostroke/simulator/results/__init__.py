"""What a simulation did, as columns, percentiles and metrics."""
