"""The field's claims about serving, as experiments: computed, simulated, measured on this machine.

``registry`` lists them; each family of claims is a file.
"""
