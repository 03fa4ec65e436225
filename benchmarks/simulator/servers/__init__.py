"""Whole servers as others measured them, beside what ``twostroke simulate`` says of them."""
