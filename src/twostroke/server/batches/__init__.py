"""Batches over HTTP: files of requests that the server answers itself, beside everything else."""
