"""Which requests come to a simulated fleet, and when."""
