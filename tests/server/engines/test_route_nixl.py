"""``--kv-transfer nixl``: what crosses by NIXL is written on as if it had not crossed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from tests.server.engines.test_prefill_engines import stream
from tests.server.engines.test_route_apart import FLAGS, Apart
from tests.server.running import ServerProcess, running_process, wait_until

needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")


@pytest.fixture(scope="module")
def together() -> Iterator[ServerProcess]:
    with running_process("-m", "twostroke", "serve", "--port", "0", *FLAGS) as process:
        process.url()
        yield process


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    token = tmp_path_factory.mktemp("nixl") / "token"
    token.write_text("a secret of the workers\n")
    with ExitStack() as stack:
        yield Apart(stack, token, "--kv-transfer", "nixl")


@needs_nixl
@pytest.mark.parametrize("name", ["plain", "samples", "schema"])
def test_answers_are_those_of_one_process(together: ServerProcess, apart: Apart, name: str) -> None:
    expected, before = stream(together, name, salt=name), apart.fetched()
    assert stream(apart.router, name, salt=name) == expected
    assert apart.fetched() - before > 80


@needs_nixl
def test_a_prefill_worker_is_started_again_while_its_blocks_cross(
    together: ServerProcess, apart: Apart
) -> None:
    expected, giver = stream(together, "plain", salt="ends"), apart.workers["prefill"]

    def kill() -> None:
        giver.process.send_signal(signal.SIGKILL)

    assert apart.stream("plain", "killed", kill) == expected
    apart.kill("prefill")
    apart.start_again("prefill")
    wait_until(apart.are_there)
    before = apart.fetched()
    assert stream(apart.router, "plain", salt="back") == expected
    assert apart.fetched() - before > 80


@pytest.mark.skipif(find_spec("nixl") is not None, reason="NIXL is installed")
def test_without_nixl_a_worker_says_what_to_install() -> None:
    flags = ("--role", "decode", "--kv-transfer", "nixl", "--listen", "127.0.0.1:0")
    with running_process("-m", "twostroke", "worker", *flags) as process:
        assert process.end(60) != 0
        assert "--kv-transfer nixl: NIXL is not installed" in process.stderr
        assert "pip install 'twostroke[nixl]'" in process.stderr


def test_a_worker_that_moves_no_blocks_takes_no_way_for_them() -> None:
    flags = ("--kv-transfer", "nixl", "--listen", "127.0.0.1:0")
    with running_process("-m", "twostroke", "worker", *flags) as process:
        assert process.end(60) != 0
        assert "--kv-transfer nixl means nothing with --role both" in process.stderr
