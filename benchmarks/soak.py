"""Does a server that is treated badly for a long time stay as it was?

    python -m benchmarks.soak --minutes 20

Starts ``twostroke serve`` on loopback and sends it good requests (chats, forms, loops with tools)
beside aborts, dropped connections, malformed bodies and oversized prompts. After the warm-up a
light key is measured too, first beside these visitors alone, then while a hostile one attacks
(``benchmarks.attacks``). At the end: every block is free, resident memory and file descriptors are
what they were after the warm-up (memory without visitors, once what was freed was given back), no
good request failed, and no attack cost the light key a 429 or more than twice its P99 TTFT. The
exit code says whether all of that held.
"""

from __future__ import annotations

import asyncio
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cyclopts
import httpx
import psutil

from benchmarks.attacks import ATTACKS, have_memory_returned, send_each_body_once
from benchmarks.body_delay import LIMIT
from benchmarks.environment import OtherPrograms, environment, environment_text
from benchmarks.neighbour import (
    TTFT_FACTOR,
    Phase,
    in_turn,
    judge_phases,
    measure_phases,
    phases_table,
    to_repeat,
)
from benchmarks.server import ServerProcess, metric, running_server, tail
from benchmarks.visitors import Tally, Visitor
from twostroke.gateway.keys import key_line, new_key

RESULTS = Path(__file__).parent / "results"
# What grows to a fixed size and then stays is small enough to be full when the warm-up ends.
FLAGS = {
    "--kv-cache-memory": "32MiB",
    "--max-model-len": "2048",
    "--step-events": "256",
    "--max-num-seqs": "32",
    "--dtype": "float32",
    "--policy": "fair",
    # Far above what the light key waits: what refuses one of its calls has predicted wrongly.
    "--admission": "predicted",
    "--target": "ttft=p95:5,key=light",
    "--tool-call-parser": "hermes",
}
# Shares of a run: the light key without and with each attack, in turn; the light key without an
# attacker again, which shows what memory the attacks have left behind.
ATTACKS_SHARE, CALM_END_SHARE = 0.5, 0.08
# Of the warm-up, which is not judged: before attacks, and each round of them. They go on until a
# round has made memory grow by little. A leak never stops, so their number is bounded.
CALM_SHARE, ROUND_SHARE = 0.12, 0.15
MIN_ROUNDS, MAX_ROUNDS, SETTLED = 2, 5, 0.01
SLICE_SECONDS = 10.0  # at most, of a time with or without an attack
REPEATED_SECONDS = 3.0
MEMORY_TOLERANCE = 0.02
SAMPLE_SECONDS = 0.5
IDLE_SECONDS = 30.0  # within which a server without visitors must be idle


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at one moment: seconds since the first visit, bytes, descriptors."""

    seconds: float
    resident: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold at the end."""

    name: str
    measured: str
    asked: str
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that was seen; blocks in use and requests are read after the last visitor."""

    seconds: float
    warm_up: float  # seconds that it took
    calm_end: float  # seconds after which it began
    tally: Tally
    phases: list[Phase]
    samples: list[Sample]
    at_rest: tuple[int, int]  # resident bytes without visitors, after the warm-up and the attacks
    descriptors_before: int
    descriptors_after: int
    usage_after: float
    requests_after: float
    alive: bool
    log: str


def main(
    *, minutes: float = 20.0, concurrency: int = 32, seed: int = 0, out: Path = RESULTS
) -> int:
    """Soak a server, print one table, and record it.

    Args:
        minutes: How long visitors come; what is repeated comes on top, and a longer warm-up.
        concurrency: Visitors at a time.
        seed: Decides what each of them does, though not when the server is how far with it.
        out: Folder for the record.

    Returns:
        0 if all checks held.
    """
    other_programs = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-soak-") as folder:
        log = Path(folder) / "server.log"
        keys = {name: new_key() for name in ("ordinary", "light", "hostile", "admin")}
        key_file = Path(folder) / "keys"
        lines = [key_line(name, key, admin=name == "admin") for name, key in keys.items()]
        key_file.write_text("\n".join(lines))
        flags = [part for pair in FLAGS.items() for part in pair]
        flags += ["--api-key-file", str(key_file)]
        with running_server("pilot", log, *flags) as server:
            run = asyncio.run(soak(server, log, minutes * 60, concurrency, seed, keys))
    checks = judge(run)
    text = table(run, checks)
    print(text, flush=True)
    for error in run.tally.errors:
        print(f"failed: {error}", file=sys.stderr)
    command = shlex.join(["python", "-m", "benchmarks.soak", *sys.argv[1:]])
    write(run, checks, text, environment(command, other_programs.share()), out)
    return 0 if all(check.held for check in checks) else 1


async def soak(
    server: ServerProcess,
    log: Path,
    seconds: float,
    concurrency: int,
    seed: int,
    keys: Mapping[str, str],
) -> Run:
    """Visit ``server`` for a while, then wait until it is idle."""
    process = psutil.Process(server.process.pid)
    headers = {"authorization": f"Bearer {keys['ordinary']}"}
    own: dict[str, Any] = {"base_url": server.url, "headers": headers}
    async with httpx.AsyncClient(**own, trust_env=False, timeout=30) as client:
        context = (await client.get("/v1/models")).json()["data"][0]["max_model_len"]
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
        await send_each_body_once(server.url, keys["hostile"])
        before = process.num_fds()
        tally, samples = Tally(), list[Sample]()
        awake, resting = asyncio.Event(), set[int]()
        awake.set()
        began = time.perf_counter()

        async def visit(number: int) -> None:
            visitor = Visitor(
                server.url,
                f"{seed} {number}",
                tally,
                max_model_len=context,
                max_body_size=LIMIT,
                key=keys["ordinary"],
            )
            try:
                while not light.done():
                    resting.add(number)
                    await awake.wait()
                    resting.discard(number)
                    await visitor.visit()
            finally:
                await visitor.close()

        async def rest() -> int:
            """Bytes in use while all visitors pause: holes in heaps vary, so the least counts."""
            awake.clear()
            deadline = time.perf_counter() + IDLE_SECONDS
            while len(resting) < concurrency and time.perf_counter() < deadline:
                await asyncio.sleep(0.1)
            await become_idle(client, keys["admin"])
            looks = []
            for _ in range(3):
                await have_memory_returned(server.url, keys["hostile"])
                looks.append(own_memory(process))
            awake.set()
            return min(looks)

        watching = asyncio.ensure_future(watch(process, samples, began))
        light = asyncio.ensure_future(neighbours(server.url, seconds, keys, rest))
        await asyncio.gather(*(visit(number) for number in range(concurrency)))
        phases, marks, at_rest = await light
        watching.cancel()
        lasted = time.perf_counter() - began
        usage, requests = await become_idle(client, keys["admin"])
        return Run(
            seconds=lasted,
            warm_up=marks[0] - began,
            calm_end=marks[1] - began,
            tally=tally,
            phases=phases,
            samples=samples,
            at_rest=at_rest,
            descriptors_before=before,
            descriptors_after=await settle(process, before),
            usage_after=usage,
            requests_after=requests,
            alive=server.process.poll() is None,
            log=tail(log),
        )


async def neighbours(
    url: str, seconds: float, keys: Mapping[str, str], rest: Callable[[], Awaitable[int]]
) -> tuple[list[Phase], tuple[float, float], tuple[int, int]]:
    """What the light key sees, without and with an attacker.

    Then when warm-up and attacks ended, and what ``rest`` gave after each.
    """

    async def measure(attacks: Sequence[str], each: float) -> list[Phase]:
        lengths = [each] * len(attacks)
        return await measure_phases(url, keys["light"], keys["hostile"], attacks, lengths)

    await asyncio.sleep(CALM_SHARE * seconds)
    looks = list[int]()
    while len(looks) < MAX_ROUNDS:
        await measure(list(ATTACKS), ROUND_SHARE * seconds / len(ATTACKS))
        looks.append(await rest())
        if len(looks) >= MIN_ROUNDS and looks[-1] <= looks[-2] * (1 + SETTLED):
            break
    warm = time.perf_counter()
    each = ATTACKS_SHARE * seconds / len(ATTACKS)
    pairs = max(3, math.ceil(each / 2 / SLICE_SECONDS))
    phases = await measure(in_turn(ATTACKS, pairs), each / 2 / pairs)
    # A slice of a short run holds a handful of requests: what seems to harm gets longer ones, too.
    phases += await measure(in_turn(to_repeat(phases), pairs), REPEATED_SECONDS)
    last = await rest()
    calm = time.perf_counter()
    phases += await measure([""], CALM_END_SHARE * seconds)
    return phases, (warm, calm), (looks[-1], last)


def own_memory(process: psutil.Process) -> int:
    """Resident bytes but for pages of files, which the kernel drops and reads again as it likes."""
    info = process.memory_info()
    return int(info.rss - info.shared)


async def watch(process: psutil.Process, samples: list[Sample], began: float) -> None:
    """Look at the server's process now and then, until cancelled."""
    while True:
        samples.append(Sample(time.perf_counter() - began, own_memory(process), process.num_fds()))
        await asyncio.sleep(SAMPLE_SECONDS)


async def become_idle(client: httpx.AsyncClient, admin_key: str) -> tuple[float, float]:
    """Share of blocks in use, and requests, once both are zero or time is up."""
    deadline = time.perf_counter() + IDLE_SECONDS
    headers = {"authorization": f"Bearer {admin_key}"}
    while True:
        metrics = (await client.get("/metrics", headers=headers)).text
        requests = metric(metrics, "vllm:num_requests_running") + metric(
            metrics, "vllm:num_requests_waiting"
        )
        usage = metric(metrics, "vllm:kv_cache_usage_perc")
        if not requests + usage or time.perf_counter() > deadline:
            return usage, requests
        await asyncio.sleep(0.1)


async def settle(process: psutil.Process, before: int) -> int:
    """Descriptors, once closed connections are gone or have had five seconds for it."""
    for _ in range(50):
        if process.num_fds() <= before:
            break
        await asyncio.sleep(0.1)
    return process.num_fds()


def judge(run: Run) -> list[Check]:
    """What must hold."""
    first, last = run.at_rest
    growth = last / first - 1
    idle = run.requests_after == 0
    bad = sum(run.tally.failed.values())
    good = sum(run.tally.visits.values()) - bad
    leaked = run.descriptors_after - run.descriptors_before
    return [
        Check(
            "visits not answered as they should be",
            f"{bad} of {good + bad}",
            "0",
            bad == 0 and good > 0,
        ),
        Check("KV blocks in use at the end", f"{run.usage_after:.1%}", "0 %", run.usage_after == 0),
        Check("requests in the engine at the end", f"{run.requests_after:g}", "0", idle),
        Check(
            "resident memory, end against end of warm-up",
            f"{growth:+.1%} ({first / 2**20:.1f} to {last / 2**20:.1f} MiB)",
            f"within {MEMORY_TOLERANCE:.0%}",
            growth <= MEMORY_TOLERANCE,
        ),
        Check(
            "file descriptors left over",
            f"{leaked} (of {run.descriptors_before})",
            "0",
            leaked <= 0,
        ),
        *neighbour_checks(run.phases),
        Check("the server's process", "alive" if run.alive else "ended", "alive", run.alive),
    ]


def neighbour_checks(phases: Sequence[Phase]) -> list[Check]:
    """The light key: answered without an attacker, and as well during each attack."""
    alone = [phase for phase in phases if not phase.attack]
    answered, refused, failed = (
        sum(counts) for counts in zip(*((len(p.ttfts), p.refused, len(p.failed)) for p in alone))
    )
    return [
        Check(
            "light key without an attacker: answered, refused, failed",
            f"{answered}, {refused}, {failed}",
            "all answered",
            answered > 0 and not refused and not failed,
        ),
        *(
            Check(
                f"light key during {verdict.phase.attack}: TTFT, 429, failed",
                f"{verdict.factor:.2f}x {'P99' if verdict.enough else 'P50'},"
                f" {verdict.phase.refused}, {len(verdict.phase.failed)}",
                f"{TTFT_FACTOR:g}x, 0, 0",
                verdict.held,
            )
            for verdict in judge_phases(phases)
        ),
    ]


def table(run: Run, checks: Sequence[Check]) -> str:
    """Markdown: what was sent, then what held."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(run.tally.visits.items()))
    most_descriptors = max(sample.descriptors for sample in run.samples)
    lines = [
        (
            f"{run.seconds / 60:.1f} minutes, the first {run.warm_up / 60:.1f} of them warm-up:"
            f" {sum(run.tally.visits.values())} visits\n({kinds}),\n{run.tally.tokens} tokens to"
            f" good ones, at most {most_descriptors} file descriptors"
        ),
        "",
        "| | found | asked | |",
        "|---|---|---|---|",
        *(
            f"| {c.name} | {c.measured} | {c.asked} | {'held' if c.held else 'MISSED'} |"
            for c in checks
        ),
    ]
    return "\n".join([*lines, "", phases_table(run.phases)])


def write(
    run: Run, checks: Sequence[Check], text: str, where: dict[str, Any], folder: Path
) -> None:
    """``soak.json`` with every sample, ``soak.md`` to read."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not asdict of the whole: it would count the pairs of a Counter.
    record = {field.name: getattr(run, field.name) for field in fields(run)}
    record["tally"] = {field.name: getattr(run.tally, field.name) for field in fields(run.tally)}
    record["phases"] = [asdict(phase) for phase in run.phases]
    record["samples"] = [list(asdict(sample).values()) for sample in run.samples]
    results = {
        **where,
        "server_flags": FLAGS,
        "checks": [asdict(check) for check in checks],
        **record,
    }
    (folder / "soak.json").write_text(json.dumps(results, indent=1) + "\n")
    flags = "\n".join(f"  - `{name} {value}`" for name, value in FLAGS.items())
    served = f"- server: `twostroke serve pilot` with\n{flags}\n"
    (folder / "soak.md").write_text(f"# Soak\n\n{environment_text(where)}{served}\n{text}\n")


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
