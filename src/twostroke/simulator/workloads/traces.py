"""Recorded workloads: CSV with lengths, Mooncake's JSON lines with shared prefixes, recordings of the live server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from twostroke.bench.workload import read_trace
from twostroke.errors import ConfigError
from twostroke.observability.recorder import read_jsonl
from twostroke.simulator.workloads.base import RequestSpec

# Where the named traces come from, and under which names their files are known.
SOURCES = {
    "azure-conv": ("azure_splitwise_conv.csv", "https://github.com/Azure/AzurePublicDataset"),
    "azure-code": ("azure_splitwise_code.csv", "https://github.com/Azure/AzurePublicDataset"),
    "mooncake-conv": ("mooncake_conversation.jsonl", "https://github.com/kvcache-ai/Mooncake"),
    "mooncake-synthetic": ("mooncake_synthetic.jsonl", "https://github.com/kvcache-ai/Mooncake"),
}
FOLDER_VARIABLE = "TWOSTROKE_TRACES"
# Tokens that one hash of a Mooncake trace stands for.
MOONCAKE_BLOCK = 512
# Seconds that a trace may last: a thousand years. Past that, times are too coarse to add a step to.
LONGEST = 3e10
# Identity of what recorded requests found in the prefix cache: a recording does not say what that was.
FOUND_IN_CACHE = -1
Kind = Literal["csv", "mooncake", "recording"]


class MooncakeRow(msgspec.Struct):
    """One line; ``timestamp`` in milliseconds. A hash stands for its 512 tokens and all before them."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]] = []


def find_trace(name: str, path: Path | None) -> Path | None:
    """The file of a trace: as given, or by its name in the folder TWOSTROKE_TRACES; ``None`` if not there."""
    if path is not None:
        return path
    folder = os.environ.get(FOLDER_VARIABLE)
    file = Path(folder) / SOURCES[name][0] if folder else None
    return file if file is not None and file.is_file() else None


def missing_trace(name: str) -> ConfigError:
    """What to say where a named trace is not there."""
    file, source = SOURCES[name]
    return ConfigError(
        f"the trace {name} is not on this machine",
        hint=f"get it from {source} and give --trace-path FILE, or put it as {file} into the folder ${FOLDER_VARIABLE}",
    )


def read_specs(path: Path) -> list[RequestSpec]:
    """The requests of a trace in order of arrival, the first at time 0.

    Raises:
        ConfigError: The file cannot be read, or holds nothing that is known.
    """
    kind = _kind(path)
    if kind == "csv":
        rows = [RequestSpec(0, arrival, prompt, output) for arrival, prompt, output in read_trace(path)]
    else:
        rows = list(_read_mooncake(path) if kind == "mooncake" else _read_recording(path))
    if not rows:
        raise ConfigError(f"{path} holds no requests", hint="give a trace with at least one")
    rows.sort(key=lambda row: row.arrival)
    begin = rows[0].arrival
    if not rows[-1].arrival - begin < LONGEST:
        raise ConfigError(
            f"{path} lasts {rows[-1].arrival - begin:g} seconds", hint="times are seconds (Mooncake: milliseconds)"
        )
    return [
        RequestSpec(number, row.arrival - begin, row.prompt_tokens, row.output_tokens, row.segments)
        for number, row in enumerate(rows)
    ]


def _kind(path: Path) -> Kind:
    try:
        with path.open("rb") as file:
            line = file.readline(2**20)
    except OSError as error:
        raise ConfigError(
            f"cannot read the trace {path}: {error.strerror}", hint="give another --trace-path"
        ) from error
    if not line.startswith(b"{"):
        return "csv"
    return "recording" if line.startswith(b'{"step"') else "mooncake"


def _read_mooncake(path: Path) -> Iterator[RequestSpec]:
    decoder = msgspec.json.Decoder(MooncakeRow)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number}: {error}", hint="mend or remove the line") from error
            if row.input_length < 1 or row.output_length < 1:
                continue
            yield RequestSpec(
                0, row.timestamp / 1000, row.input_length, row.output_length, _segments(row.hash_ids, row.input_length)
            )


def _segments(hash_ids: list[int], length: int) -> tuple[tuple[int, int], ...]:
    """The last hash covers what is left of the prompt."""
    lengths = [min(MOONCAKE_BLOCK, length - at * MOONCAKE_BLOCK) for at in range(len(hash_ids))]
    return tuple((identity, tokens) for identity, tokens in zip(hash_ids, lengths) if tokens > 0)


def _read_recording(path: Path) -> Iterator[RequestSpec]:
    """Requests from the step events of a live server. What ended early counts with the tokens that it got."""
    arrivals: dict[str, float] = {}
    prompts: dict[str, int] = {}
    outputs: dict[str, int] = {}
    cached: dict[str, int] = {}
    for event in read_jsonl(path):
        for share in event.scheduled:
            name = share.request_id
            if share.queued_since is not None and name not in arrivals:
                arrivals[name], cached[name], outputs[name] = share.queued_since, share.start, 0
            if name not in arrivals:
                continue  # it began before the recording did
            outputs[name] += share.num_new_tokens
            if share.sampled and name not in prompts:
                prompts[name] = share.start + share.num_prompt_tokens
    for name, prompt in prompts.items():
        segments = ((FOUND_IN_CACHE, cached[name]),) if cached[name] else ()
        yield RequestSpec(0, arrivals[name], prompt, outputs[name], segments)
