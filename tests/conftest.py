"""Settings for all tests."""

from __future__ import annotations

import os

# The models in the tests are tiny, and waiting for a second thread on a busy machine costs far more than it saves.
os.environ.setdefault("OMP_NUM_THREADS", "1")
