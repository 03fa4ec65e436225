"""Options of a fleet whose replicas have roles, and of replicas that die."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import Annotated, Any, Literal

from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import check_fields, within
from twostroke.simulator.deployment.options import MAX_DEVICES, Bandwidth

# What a replica does: all of a request, its prompt, or its answer.
Role = Literal["both", "prefill", "decode"]
# What a pool may say of itself; --gpu, --tp and so on say the rest, for both pools.
POOL_KEYS: dict[str, type] = {
    "gpu": str,
    "tp": int,
    "data_parallel_size": int,
    "pipeline_parallel_size": int,
    "enable_expert_parallel": bool,
    "replicas": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
}
DEVICE_COUNTS = ("tp", "replicas", "data_parallel_size", "pipeline_parallel_size")
BOOLEANS = {"true": True, "false": False}
POOL_HINT = "write it as gpu=h100,tp=2,replicas=2; keys: " + ", ".join(POOL_KEYS)
FAIL_HINT = "write it as replica=0,at=30,for=60: seconds; without for it stays away"


@dataclass(frozen=True, slots=True)
class ReplicaDeath:
    """A replica dies, and another takes its place.

    Attributes:
        place: Which replica, counted from 0; those that compute prompts come first.
        at: When, in seconds since the start.
        lasts: Seconds until its place is taken; infinite: it stays empty.
    """

    place: int
    at: float
    lasts: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Roles of a fleet's replicas, what moves between them, and which of them die."""

    prefill: str | None = None
    """Replicas that compute prompts, such as gpu=h100,tp=2,replicas=2; with --decode."""
    decode: str | None = None
    """Replicas that write answers, such as gpu=h200,replicas=3; what a pool leaves out is as
    --gpu, --tp, --max-num-seqs and --max-num-batched-tokens say.
    """
    prefill_min_tokens: Annotated[int, within(1, 2**31 - 1)] = 256
    """Shorter prompts are computed where their answers are, beside --prefill."""
    transfer_bandwidth: Bandwidth | None = None
    """GB/s at which each device sends or gets KV blocks; default: the slower sheet's network."""
    transfer_latency: Annotated[float, within(0, 60)] = 0.001
    """Seconds from asking for a prompt's blocks until the first comes."""
    first_token: Literal["prefill", "decode"] = "prefill"
    """Which replica's first token a client gets: the prompt's, as `twostroke serve` does, or the
    answer's (vLLM, SGLang, TensorRT-LLM), after the transfer and the wait for room.
    """
    fail: tuple[str, ...] = ()
    """A replica dies, such as replica=0,at=30,for=60 (repeat the flag for more): its requests go on
    in others, and after `for` seconds a fresh one is in its place.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.prefill is None) is not (self.decode is None):
            raise ConfigError(
                "--prefill and --decode belong together",
                hint="give both: --prefill gpu=h100,replicas=2 --decode gpu=h100,replicas=3",
            )
        self.pools()
        self.failures()

    @property
    def is_split(self) -> bool:
        """Whether prompts are computed apart."""
        return self.prefill is not None

    def pools(self) -> dict[Role, dict[str, Any]]:
        """What each pool says of itself, by its role; empty without pools."""
        texts: tuple[tuple[Role, str | None], ...] = (
            ("prefill", self.prefill),
            ("decode", self.decode),
        )
        return {role: _read_pool(role, text) for role, text in texts if text is not None}

    def failures(self) -> tuple[ReplicaDeath, ...]:
        """The failures, in order of time."""
        failures = sorted((_read_failure(text) for text in self.fail), key=lambda each: each.at)
        until: dict[int, float] = {}
        for each in failures:
            if each.at < until.get(each.place, 0.0):
                raise ConfigError(
                    f"--fail: replica {each.place} is away at {each.at:g} s, and cannot die then",
                    hint="let it fail later, or come back earlier",
                )
            until[each.place] = each.at + each.lasts
        return tuple(failures)

    def without_effect(self) -> list[str]:
        """Flags that were given, and that nothing depends on."""
        if self.is_split:
            return []
        of_pools = ("prefill_min_tokens", "transfer_bandwidth", "transfer_latency", "first_token")
        return [
            "--" + field.name.replace("_", "-")
            for field in fields(self)
            if field.name in of_pools and getattr(self, field.name) != field.default
        ]


def _read_pool(role: Role, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, separator, value = (piece.strip() for piece in part.partition("="))
        key = name.replace("-", "_")
        if not separator or not value or key not in POOL_KEYS or key in values:
            raise ConfigError(f"--{role} {text!r}: {part.strip()!r} is no setting", hint=POOL_HINT)
        values[key] = _read_value(role, key, value)
    return values


def _read_value(role: Role, key: str, value: str) -> str | int | bool:
    if POOL_KEYS[key] is int:
        return _read_count(role, key, value)
    if POOL_KEYS[key] is not bool:
        return value
    if value not in BOOLEANS:
        raise ConfigError(f"--{role}: {key} must be true or false, got {value}", hint=POOL_HINT)
    return BOOLEANS[value]


def _read_count(role: Role, key: str, value: str) -> int:
    most = MAX_DEVICES if key in DEVICE_COUNTS else 10**9
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= most:
        raise ConfigError(
            f"--{role}: {key} must be a whole number from 1 to {most}, got {value}", hint=POOL_HINT
        )
    return int(value)


def _read_failure(text: str) -> ReplicaDeath:
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in ("replica", "at", "for") or name in values or not 0 <= number < inf:
            raise ConfigError(f"--fail {text!r}: {part.strip()!r} is no setting", hint=FAIL_HINT)
        values[name] = number
    if "replica" not in values or "at" not in values or values["replica"] % 1:
        raise ConfigError(f"--fail {text!r} does not say which replica, and when", hint=FAIL_HINT)
    if values.get("for") == 0:
        raise ConfigError(f"--fail {text!r}: a replica is away for some time", hint=FAIL_HINT)
    return ReplicaDeath(int(values["replica"]), values["at"], values.get("for", inf))
