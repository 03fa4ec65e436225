"""Reports of earlier runs, read back and checked: values that tables and pages show have a type."""

from __future__ import annotations

from pathlib import Path
from types import GenericAlias
from typing import Any, cast

import msgspec

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_bytes
from twostroke.observability.latency import PERCENTILES, LatencyDistribution, latency_fields
from twostroke.simulator.reports.fields import WAITS
from twostroke.simulator.results.summary import RUN_LATENCIES


class _Hardware(msgspec.Struct):
    name: str
    title: str


class _Setting(msgspec.Struct):
    model: str
    workload: str
    batching: str
    policy: str
    seed: int
    tp: int
    replicas: int
    rate: float | None
    arrivals: str
    concurrency: int


class _Timeline(msgspec.Struct):
    time: list[float]
    running: list[float]
    waiting: list[float]
    kv: list[float]
    tokens_per_second: list[float]


_NO_VALUES = latency_fields("", LatencyDistribution(0.0, dict.fromkeys(PERCENTILES, 0.0)))
_NUMBERS = [
    *(f"{field.removesuffix('__ms')}_{key}_ms" for key in RUN_LATENCIES for field in _NO_VALUES),
    *(
        "completed",
        "request_throughput",
        "output_throughput",
        "prefix_hit_rate",
        "dollars_per_million_tokens",
    ),
    *("mfu", "mbu", "kv_mean", "kv_peak"),
]
_Ttft: Any = msgspec.defstruct(
    "_Ttft", [(name, float) for name in _NUMBERS if name.endswith("_ttft_ms")]
)
_Summary: Any = msgspec.defstruct(
    "_Summary",
    [
        *((name, float) for name in _NUMBERS),
        ("request_goodput", float | None),
        ("binding", dict[str, float]),
        ("waiting_for", dict[str, float]),
        ("by_priority", GenericAlias(dict, (str, _Ttft))),
        ("by_tenant", GenericAlias(dict, (str, _Ttft))),
    ],
)
_Run: Any = msgspec.defstruct(
    "_Run",
    [
        ("label", str),
        ("description", str),
        ("setting", _Setting),
        ("hardware", _Hardware),
        ("deployment", dict[str, Any]),
        ("targets", dict[str, float]),
        ("notes", list[str]),
        ("interrupted", bool),
        ("timeline", _Timeline),
        ("interval", GenericAlias(dict, (str, _Summary))),
    ],
    bases=(_Summary,),
    kw_only=True,
)


def read_report(path: Path) -> list[dict[str, Any]]:
    """The runs of a report of ``--output-json``, labelled with the file's name.

    Raises:
        ConfigError: The file cannot be read, or is no report of this version.
    """
    hint = "give a file that `twostroke simulate --output-json` of this version wrote"
    try:
        raw = msgspec.json.decode(read_bytes(path))
        if not isinstance(raw, dict) or not isinstance(raw.get("runs"), list):
            raise ConfigError(f"{path} is no report: it has no list of runs", hint=hint)
        for run in raw["runs"]:
            timeline = msgspec.convert(run, _Run).timeline
            if len({len(getattr(timeline, name)) for name in timeline.__struct_fields__}) != 1:
                raise ConfigError(f"{path} is no report: its timelines differ in length", hint=hint)
            if unknown := set(run["waiting_for"]) - set(WAITS):
                raise ConfigError(
                    f"{path} is no report: requests wait for {min(unknown)!r}", hint=hint
                )
            if set(run["interval"]) not in ({"low", "high"}, set()):
                raise ConfigError(
                    f"{path} is no report: an interval has a low and a high end", hint=hint
                )
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no report: {error}", hint=hint) from error
    runs = cast("list[dict[str, Any]]", raw["runs"])
    return [
        {**run, "label": f"{path.stem}: {run['label']}" if run["label"] else path.stem}
        for run in runs
    ]
