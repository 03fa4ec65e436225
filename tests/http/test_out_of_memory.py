"""A server that has run out of memory ends, and says so: it must not hang half alive."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx
import pytest

from tests.server.running import running_process

BODY = {"prompt": [1, 2, 3], "max_tokens": 8, "ignore_eos": True}


@pytest.mark.parametrize("place", ["engine", "loop", "route"])
def test_running_out_of_memory_ends_the_process(place: str) -> None:
    """It went on: `/health` timed out and SIGTERM was ignored, so that no supervisor noticed."""
    with running_process("-m", "tests.server.serve_starved", place) as server:
        url = server.url()
        assert httpx.get(f"{url}/health").status_code == 200
        began = time.monotonic()

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                if place == "route":
                    httpx.get(f"{url}/metrics", timeout=20)
                else:
                    httpx.post(f"{url}/v1/completions", json=BODY, timeout=20)

        asking = threading.Thread(target=ask)
        asking.start()
        assert server.end(20) == 1, server.stderr
        assert time.monotonic() - began < 15
        asking.join()
        assert "error: the server ran out of memory and has ended\n\nhint: " in server.stderr
        assert "Traceback" not in server.stderr


def test_running_out_of_memory_while_loading_ends_the_process() -> None:
    with running_process("-m", "tests.server.serve_starved", "load") as server:
        assert server.end(20) == 1, server.stderr
        assert "error: the server ran out of memory and has ended\n\nhint: " in server.stderr
