"""What runs engines for others: a server, and a worker and a router apart."""
