"""``role`` of the pools of a fleet: prompts computed apart, whatever ends or changes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.engines.test_fleet import reload, replicas, running
from tests.server.engines.test_prefill_engines import CALLS, stream
from tests.server.running import ServerProcess, running_process, wait_until

FETCHED = r'^twostroke:kv_tier_hit_tokens_total\{.*tier="[\d.]+:\d+".*\} (\S+)'
STATES = r'^twostroke:replicas\{.*pool="([^"]+)",state="ready"\} (\S+)'
OWN = """
kv-cache-memory = "64MiB"
max-num-seqs = 8
max-prefill-chunk = 32
"""
FILE = f"""
[server]
prefill-min-tokens = 32
shutdown-timeout = 20

[pools.pilot]
model = "pilot"
role = "decode"
replicas = 2
{OWN}
[pools.prompts]
model = "pilot"
role = "prefill"
served-model-name = "pilot"
prefill-memory = "64MiB"
{OWN}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roles") / "fleet.toml"


@pytest.fixture(scope="module")
def together() -> Iterator[ServerProcess]:
    flags = ("--port", "0", "--kv-cache-memory", "64MiB", "--max-num-seqs", "8")
    with running_process("-m", "twostroke", "serve", *flags) as process:
        process.url()
        yield process


@pytest.fixture(scope="module")
def fleet(path: Path) -> Iterator[ServerProcess]:
    with running(path, FILE) as fleet:
        fleet.url()
        yield fleet
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end(30) == 0, fleet.stderr


def metrics(fleet: ServerProcess) -> str:
    return httpx.get(f"{fleet.url()}/metrics", timeout=30).text


def fetched(fleet: ServerProcess) -> int:
    """Tokens whose blocks came from a replica of the other pool."""
    found = re.findall(FETCHED, metrics(fleet), re.MULTILINE)
    return sum(int(float(each)) for each in found)


def num_ready(fleet: ServerProcess) -> dict[str, int]:
    found = re.findall(STATES, metrics(fleet), re.MULTILINE)
    return {pool: int(float(number)) for pool, number in found}


def process_of(fleet: ServerProcess, pool: str) -> int:
    """A replica of a pool, as the log names it last."""
    told = [line for line in fleet.stderr.splitlines() if f"pool {pool}: " in line]
    found = re.findall(r"ready \(process (\d+)", told[-1])
    return int(found[0])


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_those_of_one_process(
    together: ServerProcess, fleet: ServerProcess, name: str
) -> None:
    assert num_ready(fleet) == {"pilot": 2, "prompts": 1}
    expected, before = stream(together, name, salt=name), fetched(fleet)
    assert stream(fleet, name, salt=name) == expected
    if name in ("plain", "samples", "schema"):
        assert fetched(fleet) - before > 80


def test_the_two_pools_are_one_model(fleet: ServerProcess) -> None:
    answer = httpx.get(f"{fleet.url()}/v1/models", timeout=30).json()
    assert [each["id"] for each in answer["data"]] == ["pilot"]
    engines = set(re.findall(r'^twostroke:engine_up\{engine="(\d)"', metrics(fleet), re.MULTILINE))
    assert engines == {"0", "1", "2"}


@pytest.mark.parametrize("pool", ["prompts", "pilot"])
def test_while_a_pool_is_down_the_other_does_everything(
    together: ServerProcess, fleet: ServerProcess, pool: str
) -> None:
    expected = stream(together, "plain", salt="down")
    os.kill(process_of(fleet, pool), signal.SIGKILL)
    assert stream(fleet, "plain", salt=f"down{pool}") == expected
    wait_until(lambda: num_ready(fleet) == {"pilot": 2, "prompts": 1})
    wait_until(lambda: "starts" not in fleet.stderr.splitlines()[-1])
    before = fetched(fleet)
    assert stream(fleet, "plain", salt=f"back{pool}") == expected
    assert fetched(fleet) - before > 80, "one that is back is used again, at its new place"


def test_a_rolling_update_of_both_pools_loses_no_request(
    together: ServerProcess, fleet: ServerProcess, path: Path
) -> None:
    expected, former = stream(together, "plain", salt="rolls"), set(replicas(fleet))

    def is_replaced() -> bool:
        now = set(replicas(fleet))
        return len(now) == 3 and not now & former

    def streams(client: int) -> list[dict[str, str]]:
        contents, end = list[dict[str, str]](), time.monotonic() + 120
        while not is_replaced() and time.monotonic() < end:
            contents.append(stream(fleet, "plain", salt=f"rolls{client}-{len(contents)}"))
        return contents

    with ThreadPoolExecutor() as threads:
        clients = [threads.submit(streams, client) for client in range(2)]
        reload(fleet, path, FILE.replace("max-num-seqs = 8", "max-num-seqs = 6"))
        wait_until(is_replaced, 90)
        contents = [content for client in clients for content in client.result(60)]
    assert len(contents) > 2 and all(content == expected for content in contents)
    before = fetched(fleet)
    assert stream(fleet, "plain", salt="rolled") == expected
    assert fetched(fleet) - before > 80


def test_a_file_whose_pools_do_not_fit_changes_nothing(
    together: ServerProcess, fleet: ServerProcess, path: Path
) -> None:
    former = set(replicas(fleet))
    reload(fleet, path, FILE.replace("[pools.prompts]", "[pools.prompts]\nblock-size = 32"))
    message = "pools pilot and prompts serve one model, pilot, and have another block-size: 16 and"
    wait_until(lambda: message in fleet.stderr)
    assert set(replicas(fleet)) == former
    assert stream(fleet, "plain", salt="stays") == stream(together, "plain", salt="stays")
