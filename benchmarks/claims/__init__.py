"""The claims benchmark: what twostroke says of itself, measured on one machine in one process."""

import os

# As ``twostroke.startup`` does for a server; here because OpenMP reads it when torch is imported,
# by any module below.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
