"""Commands that size a server: plan, simulate and diagnose one, and try what is said of them."""
