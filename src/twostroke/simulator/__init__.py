"""The engine's own loop on a virtual clock: how a fleet of other hardware would serve a
workload.
"""
