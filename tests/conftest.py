"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import settings

# The models in the tests are tiny, and waiting for a second thread on a busy machine costs far more
# than it saves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell without a terminal starts what runs in its background deaf to Ctrl-C, and `nohup` to a
# closed terminal. Some tests send these to processes that they start, which inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says more of the machine than of the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(params=["avx512", "avxvnni", "avx2", "generic"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each build of the compiled kernels in turn, in software where the processor lacks it."""
    from tests.instruction_sets import selected

    with selected(request.param) as there:
        if not there:
            pytest.skip(
                f"this processor has no {request.param}, and there is no AVX2 or no compiler to do"
                " without"
            )
        yield request.param


@pytest.fixture(scope="session")
def modules_run() -> Iterator[int]:
    return count(1)


@pytest.fixture(scope="module", autouse=True)
def short_collections(modules_run: Iterator[int]) -> Iterator[None]:
    """Take what a module's tests have left out of the garbage collector's sight.

    Else it walks two million objects by the end of the suite: 2.5 s, in which all threads of this
    process stand still, servers in the midst of a test too, and 4 minutes in all. Every so many
    modules it walks them once, between two tests, since some have become garbage.
    """
    yield
    if next(modules_run) % 60 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
