"""Measured servers of H100 with prefill and decode apart, and what is known of them.

The rows say how devices share the model. How many replicas each side had they say of 15 rows only,
and seven of these, Qwen's, do not say how many clients there were. Of DeepSeek-R1 under SGLang,
recipes for these measurements say it (InferenceX's, by srt-slurm: one replica of 16 devices for
prompts, and two for answers, or one where prompts are long). Of the other rows, all of
TensorRT-LLM, nothing does, but where an equal row of DeepSeek-V3, which has the same shape, is one
of the 15. What is not known is left out.

Half of SGLang's rows draft tokens with the model's own head (MTP), and no column says which. A row
that takes less than ``DRAFTS_BELOW`` per token does: between both kinds there is a factor of two.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

from benchmarks.simulator.data import DATA, every_nth

NAMES = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
}
# Seconds a token, without and for each client.
DRAFTS_BELOW = (0.013, 0.0002)
# A prompt of so many tokens had one replica for answers.
LONG_PROMPT = 8192
SHORTEST = 0.8  # InferenceX's lengths: from this share of those named up to them


@dataclass(frozen=True, slots=True)
class Side:
    """Replicas of one role; ``batch``: requests that each runs at once, if that is stated."""

    replicas: int
    tensor: int
    data: int
    expert: bool
    batch: int | None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One measured server; seconds, means over its requests."""

    backend: str
    model: str
    prefill: Side
    decode: Side
    input: int
    output: int
    concurrency: int
    drafts: bool
    ttft: float
    tpot: float

    @property
    def is_full(self) -> bool:
        """Whether there are as many clients as the replicas for answers have places."""
        batch = self.decode.batch
        return batch is not None and self.concurrency >= batch * self.decode.replicas

    @property
    def configuration(self) -> tuple[object, ...]:
        """What is told apart when half of them are kept out: all but what was measured."""
        return (
            *(self.backend, self.model, self.input, self.output, self.drafts),
            *(self.prefill, self.decode, self.concurrency),
        )


@cache
def pool_rows() -> tuple[PoolRow, ...]:
    """Each distinct row whose replicas are known, in a fixed order."""
    path = DATA / "aiconfigurator" / "h100_serving_disagg_measured.csv"
    with path.open(encoding="utf-8") as file:
        rows = [_row(raw) for raw in csv.DictReader(file)]
    return tuple(sorted(dict.fromkeys(row for row in rows if row is not None), key=_order))


def halves(step: int = 1) -> tuple[list[PoolRow], list[PoolRow]]:
    """Rows to fit on, and rows kept out: every other configuration of each kind of server.

    Args:
        step: Take each so many-th row of both, and of every kind one at least.
    """
    fit: list[PoolRow] = []
    kept: list[PoolRow] = []
    kinds: dict[tuple[object, ...], list[PoolRow]] = {}
    for row in pool_rows():
        kinds.setdefault(_kind(row), []).append(row)
    for rows in kinds.values():
        distinct = list(dict.fromkeys(row.configuration for row in rows))
        for row in rows:
            (kept if distinct.index(row.configuration) % 2 else fit).append(row)
    return every_nth(fit, step, _kind), every_nth(kept, step, _kind)


def _kind(row: PoolRow) -> tuple[object, ...]:
    return row.backend, row.drafts, row.input, row.output


def num_rows() -> int:
    """All rows of the file."""
    path = DATA / "aiconfigurator" / "h100_serving_disagg_measured.csv"
    with path.open(encoding="utf-8") as file:
        return sum(1 for _ in csv.DictReader(file))


def _order(row: PoolRow) -> tuple[object, ...]:
    return row.backend, row.model, row.drafts, row.input, row.output, row.concurrency, row.tpot


def _row(raw: dict[str, str]) -> PoolRow | None:
    model, backend = NAMES.get(raw["model_path"]), raw["backend"]
    length, output, clients = int(raw["isl"]), int(raw["osl"]), _number(raw["concurrency"])
    computing = _number(raw["prefill_num_workers"])
    answering = _number(raw["decode_num_workers"])
    if model is None or clients is None:
        return None
    if computing is None or answering is None:
        if backend != "sglang":
            return None
        computing, answering = 1, 1 if length == LONG_PROMPT else 2
    prefill, decode = _side(raw, "prefill", computing), _side(raw, "decode", answering)
    tpot = float(raw["silicon_tpot_ms"]) / 1e3
    fixed, each = DRAFTS_BELOW
    return PoolRow(
        backend=backend,
        model=model,
        prefill=prefill,
        decode=decode,
        input=length,
        output=output,
        concurrency=clients,
        drafts=backend == "sglang" and tpot < fixed + each * clients,
        ttft=float(raw["silicon_ttft_ms"]) / 1e3,
        tpot=tpot,
    )


def _side(raw: dict[str, str], side: str, replicas: int) -> Side:
    data = _number(raw[f"{side}_attention_dp_size"]) or 1
    return Side(
        replicas=replicas,
        tensor=_number(raw[f"{side}_tp_size"]) or 1,
        data=data,
        expert=(_number(raw[f"{side}_moe_ep_size"]) or 1) > 1,
        batch=_number(raw[f"{side}_batch_size"]),
    )


def _number(text: str) -> int | None:
    return round(float(text)) if text else None
