"""Who goes first: the orders in which waiting requests are admitted."""
