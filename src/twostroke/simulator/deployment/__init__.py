"""A model on its devices: options, what fits into their memory, what a replica looks like."""
