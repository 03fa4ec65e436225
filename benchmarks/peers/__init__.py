"""Other engines beside this one, on one machine in one run. Run as ``python -m
benchmarks.peers``.
"""
