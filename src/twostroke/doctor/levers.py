"""Which flags might help against a cause: what is tried, before anything is advised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from twostroke.doctor.figures import Figure
from twostroke.doctor.replayed import Setting

TTFT = Figure("ttft", 95)
STALL = Figure("stall", 95)
TPOT = Figure("tpot", 50)
E2E = Figure("e2el", 95)
# What a cause makes worse first: that is what its levers are judged by.
OBJECTIVES: dict[str, Figure] = {
    "token-budget": TTFT,
    "max-num-seqs": TTFT,
    "kv-blocks": TTFT,
    "static-batching": TTFT,
    "policy": TTFT,
    "prefill-chunk": TTFT,
    "one-key": TTFT,
    "eviction": TTFT,
    "long-prompts": STALL,  # a percentile of all gaps hides a few long ones
    "batch-too-large": TPOT,
    "preemption": E2E,
    "speculation": TPOT,
    "machine": E2E,
    "imbalance": TTFT,
    "slow-replica": E2E,
    "compute": TTFT,
    "bandwidth": E2E,
}
# What no flag of the server changes, or no replay can show: where to look instead.
NO_LEVER = {
    "host": "`twostroke bench offline --profile` and /v1/inspect show which part beside the pass"
    " takes the time (tokenising, sampling, schemas, writing)",
    "slow-client": "the server has done its part: look at the client and the network between;"
    " --min-client-rate ends those that are too slow",
    "rate-limits": "the key's limits do this (`twostroke key`); whether the server has room for"
    " more, the other figures say",
    "early-refusal": "the server says it has no room; see the causes below, or add replicas",
    "loading": "the tier is slow: see --kv-host-memory and --kv-disk",
    "policy": "see --policy",
    "replica-down": "why it ends or does not answer is in the log of the server, or of the worker",
    "pool-ratio": "change how many engines compute prompts: --prefill-engines, or the --role of"
    " workers; no replay shows it",
    "idle": "nothing to change",
}
CHUNKS = (1024, 512, 256, 128, 64)
SIZES = (2, 4, 8)


@dataclass(frozen=True)
class Treatment:
    """One change of a setting.

    Attributes:
        command: The flag as it is typed, or what is done where there is none.
        note: What it costs or assumes, beside what the replay shows.
        is_bought: Whether it takes more than a flag.
    """

    command: str
    setting: Setting
    note: str = ""
    is_bought: bool = False


def levers_for(cause: str, now: Setting, block_bytes: int = 0) -> list[Treatment]:
    """What may help against a cause, mild changes first."""
    return list(_MAKERS[cause](now, block_bytes)) if cause in _MAKERS else []


def _budget(now: Setting, _: int) -> Iterator[Treatment]:
    for factor in SIZES:
        value = now.max_num_batched_tokens * factor
        larger = replace(now, max_num_batched_tokens=value)
        yield Treatment(f"--max-num-batched-tokens {value}", larger)
    if now.max_prefill_chunk:
        yield Treatment("leave out --max-prefill-chunk", replace(now, max_prefill_chunk=None))


def _seqs(now: Setting, _: int) -> Iterator[Treatment]:
    for factor in SIZES:
        value = now.max_num_seqs * factor
        note = "larger batches than were recorded: their step times are extrapolated"
        yield Treatment(f"--max-num-seqs {value}", replace(now, max_num_seqs=value), note)


def _fewer_seqs(now: Setting, _: int) -> Iterator[Treatment]:
    for factor in SIZES:
        if (value := now.max_num_seqs // factor) >= 1:
            yield Treatment(f"--max-num-seqs {value}", replace(now, max_num_seqs=value))


def _blocks(now: Setting, block_bytes: int) -> Iterator[Treatment]:
    for factor in SIZES:
        value = now.num_blocks * factor
        size = f" {value * block_bytes >> 20}MiB" if block_bytes else f", {factor} times as much"
        note = f"{value:,} blocks must fit the memory"
        yield Treatment(f"--kv-cache-memory{size}", replace(now, num_blocks=value), note)
    note = "taken as twice the blocks of bfloat16 at the same step times"
    yield Treatment("--kv-cache-dtype int8", replace(now, num_blocks=2 * now.num_blocks), note)


def _preemption(now: Setting, block_bytes: int) -> Iterator[Treatment]:
    yield from _blocks(now, block_bytes)
    yield from _fewer_seqs(now, block_bytes)


def _chunk(now: Setting, _: int) -> Iterator[Treatment]:
    limit = min(now.max_prefill_chunk or now.max_num_batched_tokens, now.max_num_batched_tokens)
    for value in CHUNKS:
        if value < limit:
            yield Treatment(f"--max-prefill-chunk {value}", replace(now, max_prefill_chunk=value))
    for value in CHUNKS:
        if value < now.max_num_batched_tokens and value > now.max_num_seqs:
            yield Treatment(
                f"--max-num-batched-tokens {value}", replace(now, max_num_batched_tokens=value)
            )


def _larger_chunk(now: Setting, _: int) -> Iterator[Treatment]:
    yield Treatment("leave out --max-prefill-chunk", replace(now, max_prefill_chunk=None))
    if now.max_prefill_chunk:
        for factor in SIZES:
            value = now.max_prefill_chunk * factor
            if value < now.max_num_batched_tokens:
                larger = replace(now, max_prefill_chunk=value)
                yield Treatment(f"--max-prefill-chunk {value}", larger)


def _static(now: Setting, _: int) -> Iterator[Treatment]:
    yield Treatment("--batching continuous", replace(now, batching="continuous"))


def _fair(now: Setting, _: int) -> Iterator[Treatment]:
    if now.policy != "fair":
        yield Treatment("--policy fair", replace(now, policy="fair"))


def _no_drafts(now: Setting, _: int) -> Iterator[Treatment]:
    yield Treatment("leave out --speculation", replace(now, drafts=False))


def _steady(now: Setting, _: int) -> Iterator[Treatment]:
    note = "the machine at its usual speed throughout; look at `top` and at st in `vmstat 1`"
    yield Treatment(
        "keep other programs off its cores (taskset, nice)", replace(now, steady=True), note
    )


def _routers(now: Setting, _: int) -> Iterator[Treatment]:
    if now.replicas > 1:
        yield Treatment("--router least-loaded", replace(now, router="least-loaded"))
        yield Treatment("--router prefix-affinity", replace(now, router="prefix-affinity"))


def _replicas(now: Setting, _: int) -> Iterator[Treatment]:
    for factor in (2, 4):
        value = now.replicas * factor
        yield Treatment(
            f"--replicas {value}",
            replace(now, replicas=value, router="least-loaded"),
            "each on a machine, or on cores, of its own",
            is_bought=True,
        )


_MAKERS = {
    "token-budget": _budget,
    "max-num-seqs": _seqs,
    "kv-blocks": _blocks,
    "static-batching": _static,
    "prefill-chunk": _larger_chunk,
    "one-key": _fair,
    "eviction": _blocks,
    "long-prompts": _chunk,
    "batch-too-large": _fewer_seqs,
    "preemption": _preemption,
    "speculation": _no_drafts,
    "machine": _steady,
    "imbalance": _routers,
    "slow-replica": _routers,
    "compute": _replicas,
    "bandwidth": _replicas,
}


def all_levers(
    causes: Sequence[str], now: Setting, block_bytes: int = 0
) -> list[tuple[str, Treatment]]:
    """The levers of all causes, each once, with the cause that named it first."""
    levers: dict[Setting, tuple[str, Treatment]] = {}
    for cause in causes:
        for lever in levers_for(cause, now, block_bytes):
            if lever.setting != now:
                levers.setdefault(lever.setting, (cause, lever))
    return list(levers.values())
