"""A real server with keys and targets, and clients that keep it busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import httpx

from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys
from tests.server.running import running_server
from tests.server.tiny import make_engine, running_engine
from twostroke.core.config import ObservabilityConfig
from twostroke.core.step import StepPlan

TARGETS = (
    *("ttft=p95:0.000001", "tpot=p50:4", "errors=0.001", "kv=0.9", "queue=25"),
    *("ttft=p95:59,key=*", "e2el=p95:0.000001,key=alice"),
)


class FaultyExecutor:
    """An executor whose device fails now and then while ``broken`` is set."""

    def __init__(self, launch: Callable[[StepPlan], None], broken: threading.Event) -> None:
        self._launch = launch
        self._broken = broken

    def __call__(self, plan: StepPlan) -> None:
        # After three failures in a row the engine would give up.
        if self._broken.is_set() and plan.step % 5 == 0:
            raise RuntimeError("the device is broken")
        self._launch(plan)


@contextmanager
def live_server(folder: Path, broken: threading.Event | None = None) -> Iterator[str]:
    """The URL of a server on a tiny model that runs four requests at once.

    Args:
        broken: While it is set, steps fail.
    """
    config = ObservabilityConfig(target=TARGETS)
    engine = make_engine(observability=config, max_num_seqs=4)
    launch = FaultyExecutor(engine.executor.launch, broken or threading.Event())
    with (
        patch.object(engine.executor, "launch", launch),
        running_engine(engine) as running,
        running_server(running, gateway=gateway_with_keys(folder)) as url,
    ):
        yield url


@contextmanager
def load(url: str, clients: int, *, may_fail: bool = False) -> Iterator[None]:
    """Clients that send one request after another until the end.

    Args:
        may_fail: Answers may be errors.
    """
    enough = threading.Event()
    threads = [threading.Thread(target=_send, args=(url, enough, may_fail)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _send(url: str, enough: threading.Event, may_fail: bool) -> None:
    body = {"prompt": "the dog and the dog", "max_tokens": 20, "ignore_eos": True}
    with httpx.Client(headers=bearer(ALICE), timeout=60) as client:
        while not enough.is_set():
            status = client.post(url + "/v1/completions", json=body).status_code
            assert status == 200 or (may_fail and status == 500)
