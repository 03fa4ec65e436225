"""Which requests arrive at a simulated fleet, and when."""
