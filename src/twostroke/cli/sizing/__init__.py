"""Commands that say what to buy, what to change, and whether what is said of serving is true."""
