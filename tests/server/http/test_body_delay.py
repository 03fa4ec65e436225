"""No body within the limits holds up the server's other clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from benchmarks.body_delay import Body, best_delay, worst_bodies
from tests.machine_speed import slowness
from tests.server.running import ServerProcess, running_process

BODIES = worst_bodies()
MAX_SECONDS = 0.05
TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{{ enable_thinking | tojson if enable_thinking else '' }}"
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
)
TRIES = 12  # other work on the machine delays some of them; a stalled event loop, all


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server of its own process, with a context that long prompts fit into."""
    script = {"max_model_len": 2**15, "pieces": ["x"]}
    options = {"port": 0, "script": script, "template": TEMPLATE}
    with running_process("-m", "tests.server.serve_scripted", json.dumps(options)) as process:
        yield process


@pytest.mark.parametrize("body", BODIES, ids=[body.name for body in BODIES])
def test_the_server_answers_beside_it(server: ServerProcess, body: Body) -> None:
    pid = server.process.pid
    allowed = MAX_SECONDS * slowness()
    delay = best_delay(server.url(), pid, body, TRIES, enough=allowed)
    assert delay.status in (200, 400), delay
    assert delay.own_seconds <= allowed, delay
