"""``twostroke worker --role``: what a prefill worker computes, a decode worker writes on with."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from threading import Timer

import httpx
import pytest

from tests.server.engines.streamed_content import content_of
from tests.server.engines.test_prefill_engines import CALLS, PROMPT, stream
from tests.server.engines.test_route import address_of
from tests.server.running import ServerProcess, running_process, wait_until
from twostroke.core.network.address import Address
from twostroke.kv_tiers.block_file import BlockKind
from twostroke.kv_tiers.block_greeting import greet_giver
from twostroke.kv_tiers.block_wire import WireError

FLAGS = ("--kv-cache-memory", "64MiB", "--max-num-seqs", "8")
CHUNKS = ("--max-prefill-chunk", "32")  # of which most prompts have several
FETCHED = r'^twostroke:kv_tier_hit_tokens_total\{.*tier="127\.0\.0\.1:\d+".*\} (\S+)'
AHEAD = r"^twostroke:handed_ahead_requests_total\{.*\} (\S+)"
USED = r'^vllm:kv_cache_usage_perc\{engine="127\.0\.0\.1:(\d+)".*\} (\S+)'
LEFT_OUT = r"^twostroke:engine_left_out\{.*\} 1"


class Apart:
    """A router before a worker of each role."""

    def __init__(self, stack: ExitStack, token: Path, *common: str) -> None:
        self._stack, self.token, self._common = stack, token, common
        self.workers = {role: self.start(role) for role in ("prefill", "decode")}
        self.addresses = {role: address_of(each) for role, each in self.workers.items()}
        flags = [f"--worker={address}" for address in self.addresses.values()]
        flags += ["--token-file", str(token), "--port", "0", "--prefill-min-tokens", "32"]
        self.router = stack.enter_context(running_process("-m", "twostroke", "route", *flags))
        self.router.url()
        wait_until(self.are_there)

    def start(self, role: str, address: str = "127.0.0.1:0", *flags: str) -> ServerProcess:
        own = ["--role", role, "--listen", address, "--token-file", str(self.token)]
        own += ["--kv-listen", "127.0.0.1:0"] if role == "prefill" else []
        arguments = ("-m", "twostroke", "worker", *own, *FLAGS, *CHUNKS, *self._common, *flags)
        return self._stack.enter_context(running_process(*arguments))

    def are_there(self) -> bool:
        """Whether both run, and neither is left out since it was killed too often."""
        return not self._are_left_out() and all(
            each.process.poll() is None and " is here" in each.stderr
            for each in self.workers.values()
        )

    def _are_left_out(self) -> bool:
        return re.search(LEFT_OUT, self._metrics(), re.MULTILINE) is not None

    def _metrics(self) -> str:
        return httpx.get(f"{self.router.url()}/metrics", timeout=30).text

    def kill(self, role: str) -> None:
        """End a worker without a word."""
        self.workers[role].process.kill()
        self.workers[role].end()

    def start_again(self, role: str, *flags: str) -> None:
        self.workers[role] = self.start(role, self.addresses[role], *flags)

    @property
    def blocks_at(self) -> Address:
        """Where the prefill worker gives blocks."""
        at = r"gives KV blocks of long prompts at (\S+)"
        wait_until(lambda: re.search(at, self.workers["prefill"].stderr) is not None)
        found = re.search(at, self.workers["prefill"].stderr)
        assert found is not None
        return Address.parse(found[1])

    def ahead(self) -> int:
        """Requests of which blocks came while their prompts were computed."""
        (found,) = re.findall(AHEAD, self._metrics(), re.MULTILINE)
        return int(float(found))

    def held(self) -> float:
        """The share of their caches that requests hold, of both workers together."""
        return sum(float(share) for _, share in re.findall(USED, self._metrics(), re.MULTILINE))

    def stream(self, name: str, salt: str, when_begun: Callable[[], None]) -> dict[str, str]:
        """What the events of a call say; something happens at the first of them."""
        route, body = CALLS[name]
        body = {"model": "pilot", "seed": 11, "temperature": 0.9, "stream": True, **body}
        url, lines = f"{self.router.url()}/v1/{route}", list[str]()
        with httpx.stream("POST", url, json={**body, "cache_salt": salt}, timeout=90) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data") and not lines:
                    when_begun()
                lines.append(line)
        return content_of(iter(lines))

    def fetched(self) -> int:
        """Tokens whose blocks came from the other worker."""
        found = re.findall(FETCHED, self._metrics(), re.MULTILINE)
        return sum(int(float(each)) for each in found)


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
        wait_until(made.are_there)
        for each in (made.router, *made.workers.values()):
            each.process.send_signal(signal.SIGTERM)
            assert each.end(30) == 0, each.stderr
            assert "a secret of the workers" not in each.stderr


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_those_of_one_process(together: ServerProcess, apart: Apart, name: str) -> None:
    expected = stream(together, name, salt=name)
    before, before_ahead = apart.fetched(), apart.ahead()
    assert stream(apart.router, name, salt=name) == expected
    if name in ("plain", "samples", "schema"):
        assert apart.fetched() - before > 80
        assert apart.ahead() == before_ahead + 1


@pytest.mark.parametrize(
    ("name", "how"),
    # What is stopped before all samples have begun waits for --stall-timeout: not here.
    [("plain", signal.SIGKILL), ("samples", signal.SIGKILL), ("plain", signal.SIGSTOP)],
)
def test_a_prefill_worker_ends_or_stops_when_its_blocks_are_wanted(
    together: ServerProcess, apart: Apart, name: str, how: signal.Signals
) -> None:
    """Then blocks are on their way, or wanted next: what is not there is computed."""
    expected = stream(together, name, salt="ends")
    giver = apart.workers["prefill"]
    got = apart.stream(name, f"{name}{how}", lambda: giver.process.send_signal(how))
    assert got == expected
    if how is signal.SIGKILL:
        assert stream(apart.router, name, salt=f"then{name}") == expected
    apart.kill("prefill")
    apart.start_again("prefill")
    wait_until(apart.are_there)
    before = apart.fetched()
    assert stream(apart.router, name, salt=f"back{name}{how}") == expected
    assert apart.fetched() - before > 80, "one that is back is used again, at its new place"


def test_workers_end_or_stop_while_blocks_cross_under_the_prompt(
    together: ServerProcess, apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random moments of a prompt of many chunks; what it held is free again."""
    long = {**CALLS["plain"][1], "prompt": PROMPT * 5, "max_tokens": 30}
    monkeypatch.setitem(CALLS, "long", ("completions", long))
    began = time.monotonic()
    expected = stream(together, "long", salt="random")
    lasts, drawn = time.monotonic() - began, Random(3)
    for number, role in enumerate(("prefill", "decode") * 3):
        worker = apart.workers[role]
        timer = Timer(drawn.uniform(0, 1.2 * lasts), worker.process.kill)
        timer.start()
        assert stream(apart.router, "long", salt=f"random{number}") == expected, role
        timer.join()
        apart.kill(role)
        apart.start_again(role)
        wait_until(apart.are_there)
    before = apart.ahead()
    assert stream(apart.router, "long", salt="after") == expected
    assert apart.ahead() == before + 1
    wait_until(lambda: apart.held() == 0.0, 30)


def test_a_client_that_leaves_under_the_prompt_holds_no_block(apart: Apart) -> None:
    body = {"model": "pilot", "prompt": PROMPT * 5, "max_tokens": 500, "stream": True}
    for number in range(5):
        with suppress(httpx.ReadTimeout):
            httpx.post(
                f"{apart.router.url()}/v1/completions",
                json={**body, "cache_salt": f"leaves{number}"},
                timeout=httpx.Timeout(30, read=0.02 * (number + 1)),
            )
    wait_until(lambda: apart.held() == 0.0, 30)


def test_a_decode_worker_that_ends_leaves_its_answer_to_the_other(
    together: ServerProcess, apart: Apart
) -> None:
    expected = stream(together, "plain", salt="left")
    assert apart.stream("plain", "left", lambda: apart.kill("decode")) == expected
    assert stream(apart.router, "plain", salt="alone") == expected
    apart.start_again("decode")
    wait_until(apart.are_there)


def test_both_end_and_come_back_under_an_answer(together: ServerProcess, apart: Apart) -> None:
    expected = stream(together, "plain", salt="both")

    def end_both() -> None:
        for role in ("decode", "prefill"):
            apart.kill(role)
            apart.start_again(role)

    assert apart.stream("plain", "both", end_both) == expected
    wait_until(apart.are_there)


def test_the_place_of_blocks_is_for_those_who_know_the_token(
    together: ServerProcess, apart: Apart
) -> None:
    expected, kind = stream(together, "plain", salt="token"), BlockKind("m", "f", 16, 99)
    with socket.create_connection(apart.blocks_at) as stranger:
        stranger.settimeout(10)
        with pytest.raises(WireError, match="another token"):
            greet_giver(stranger, b"a secret that is another", kind)
    with socket.create_connection(apart.blocks_at) as stranger:
        stranger.settimeout(10)
        with pytest.raises(WireError, match=r"another (--block-size|format)"):
            greet_giver(stranger, b"a secret of the workers", kind)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b""):
        with socket.create_connection(apart.blocks_at) as stranger:
            stranger.sendall(noise)
    before = apart.fetched()
    assert stream(apart.router, "plain", salt="token") == expected
    assert apart.fetched() - before > 80


@pytest.mark.parametrize(("flag", "value"), [("--block-size", "32"), ("--kv-cache-dtype", "int8")])
def test_a_worker_whose_blocks_are_others_is_refused_by_the_flag(
    together: ServerProcess, apart: Apart, flag: str, value: str
) -> None:
    expected = stream(together, "plain", salt="size")
    apart.kill("decode")
    apart.start_again("decode", flag, value)
    refusal = f"has another {flag} than the others: {value}, not "
    wait_until(lambda: refusal in apart.router.stderr, why=lambda: apart.router.stderr)
    assert stream(apart.router, "plain", salt=f"size{flag}") == expected
    apart.kill("decode")
    apart.start_again("decode")
    wait_until(apart.are_there)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--role", "decode", "--kv-listen", "127.0.0.1:0"], "means nothing with --role decode"),
        (["--role", "prefill", "--kv-listen", "0.0.0.0:0"], "nothing keeps them out"),
        (["--role", "prefill", "--no-enable-prefix-caching"], "--role need the prefix cache"),
        (["--role", "decode", "--tensor-parallel-size", "2"], "does not work with"),
    ],
)
def test_roles_that_cannot_be_are_refused(flags: list[str], message: str) -> None:
    with running_process("-m", "twostroke", "worker", *flags) as process:
        assert process.end(60) != 0
        assert message in process.stderr
