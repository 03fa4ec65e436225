"""Coefficients of the cost model for this machine, from timed steps of the live engine."""
