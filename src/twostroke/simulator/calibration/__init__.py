"""Coefficients of the machine at hand, measured on the live engine."""
