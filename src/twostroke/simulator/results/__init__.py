"""What a fleet did, as columns of steps, distributions, utilisation and metrics."""
