"""Values that every part shares: requests, plans, results, parameters, configuration, errors. No
behaviour.
"""
