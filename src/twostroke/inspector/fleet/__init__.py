"""Several replicas on one page."""
