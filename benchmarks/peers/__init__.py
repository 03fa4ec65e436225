"""Other engines beside this one, on one machine in one run.

python -m benchmarks.peers
"""
