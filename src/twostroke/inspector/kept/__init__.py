"""A recording as one HTML file that needs no server."""
