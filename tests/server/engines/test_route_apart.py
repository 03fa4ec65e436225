"""``twostroke worker --role``: what a prefill worker computes, a decode worker writes on with."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.server.engines.test_prefill_engines import CALLS, stream
from tests.server.engines.test_route import address_of
from tests.server.running import ServerProcess, running_process, wait_until

FLAGS = ("--kv-cache-memory", "64MiB", "--max-num-seqs", "8")
FETCHED = r'^twostroke:kv_tier_hit_tokens_total\{.*tier="127\.0\.0\.1:\d+".*\} (\S+)'


class Apart:
    """A router before a worker of each role."""

    def __init__(self, stack: ExitStack, token: Path) -> None:
        self._stack, self.token = stack, token
        self.workers = {role: self.start(role) for role in ("prefill", "decode")}
        self.addresses = {role: address_of(each) for role, each in self.workers.items()}
        flags = [f"--worker={address}" for address in self.addresses.values()]
        flags += ["--token-file", str(token), "--port", "0", "--prefill-min-tokens", "32"]
        self.router = stack.enter_context(running_process("-m", "twostroke", "route", *flags))
        self.router.url()
        wait_until(self.are_there)

    def start(self, role: str, address: str = "127.0.0.1:0", *flags: str) -> ServerProcess:
        own = ("--role", role, "--listen", address, "--token-file", str(self.token))
        arguments = ("-m", "twostroke", "worker", *own, *FLAGS, *flags)
        return self._stack.enter_context(running_process(*arguments))

    def are_there(self) -> bool:
        return all(
            each.process.poll() is None and " is here" in each.stderr
            for each in self.workers.values()
        )

    def replace(self, role: str, *flags: str) -> None:
        """End a worker without a word, and start another in its place."""
        self.workers[role].process.kill()
        self.workers[role].end()
        self.workers[role] = self.start(role, self.addresses[role], *flags)

    def fetched(self) -> int:
        """Tokens whose blocks came from the other worker."""
        text = httpx.get(f"{self.router.url()}/metrics", timeout=30).text
        return sum(int(float(each)) for each in re.findall(FETCHED, text, re.MULTILINE))


@pytest.fixture(scope="module")
def together() -> Iterator[ServerProcess]:
    with running_process("-m", "twostroke", "serve", "--port", "0", *FLAGS) as process:
        process.url()
        yield process


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    token = tmp_path_factory.mktemp("apart") / "token"
    token.write_text("a secret of the workers\n")
    with ExitStack() as stack:
        made = Apart(stack, token)
        yield made
        for each in (made.router, *made.workers.values()):
            each.process.send_signal(signal.SIGTERM)
            assert each.end(30) == 0, each.stderr
            assert "a secret of the workers" not in each.stderr


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_those_of_one_process(together: ServerProcess, apart: Apart, name: str) -> None:
    expected = stream(together, name, salt=name)
    before = apart.fetched()
    assert stream(apart.router, name, salt=name) == expected
    if name in ("plain", "samples", "schema"):
        assert apart.fetched() - before > 80
