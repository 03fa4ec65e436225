"""Values that every part shares, without behaviour.

These are requests, plans, results, parameters, configuration and errors.
"""
