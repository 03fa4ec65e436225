"""The measured servers of H100, and how each was measured.

The rows do not say how requests came. Their sources do:

- AI Configurator's own runs keep ``concurrency`` clients busy for ten rounds. Its generator of
  configurations gives servers a budget of batch + prompt + 1,500 tokens a step
  (https://github.com/ai-dynamo/aiconfigurator, rules of its generator).
- Its rows of SGLang are one burst: all prompts at once, and none after them. Nothing states this.
  A closed loop takes 1.6 times their TPOT and a seventh of their TTFT; a burst fits both.
- Rows of lengths 1,024 and 8,192 of Llama 70B, gpt-oss and MiniMax are InferenceX's
  (https://github.com/SemiAnalysisAI/InferenceX, ``benchmark_lib.sh``): a closed loop of ten
  prompts for each client, ``--random-range-ratio 0.8``, so lengths from 0.8 to 1 times those named.
  Its scripts for H100 (``70b_fp8_h100_slurm.sh``, ``gptoss_fp4_h100.sh``) also say that vLLM
  schedules ahead, keeps Llama's KV cache in fp8, and computes gpt-oss's experts with Marlin.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.simulator.data import DATA

# Rows name models as the Hub does, and some that are no checkpoint's name.
NAMES = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
FORMATS = {"": "bf16", "fp8": "fp8", "fp4": "mxfp4"}
# A checkpoint whose fp8 is in blocks of 128 by 128, which the rows do not say.
IN_BLOCKS = "Qwen/Qwen3-235B-A22B-FP8"
EIGHT_BITS = ("fp8", "fp8_block")
# InferenceX's, where vLLM serves them.
DRAWN_LENGTHS = ("llama-3.1-70b", "gpt-oss-120b")
SHORTEST = 0.8
# Tokens of a step: vLLM's default on these devices, and what the generator adds.
DEFAULT_BUDGET, ADDED_BUDGET = 8192, 1500

# A server's front end and one client move no more output tokens a second than about this, whatever
# the device: at the same load per device, TTFT jumps where the rate passes it.
FRONT_END = 8000.0


# Nine rows of gpt-oss have so many clients. Each waits up to minutes, and then gets its tokens as
# fast as beside five others: the server ran few requests at once, and no row says how many.
UNKNOWN_LIMIT = 512


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One measured server; lengths in tokens, times in seconds, means over its requests.

    Attributes:
        concurrency: Clients of a closed loop, or prompts of a burst.
        ranks: Devices that share the model.
        experts_apart: Each of them has whole experts.
    """

    backend: str
    model: str
    weights: str
    ranks: int
    input: int
    output: int
    concurrency: int
    ttft: float
    tpot: float
    has_experts: bool = False
    experts_apart: bool = False

    @property
    def is_burst(self) -> bool:
        return self.backend == "sglang"

    @property
    def has_drawn_lengths(self) -> bool:
        return self.backend == "vllm" and self.model in DRAWN_LENGTHS

    @property
    def mean_share(self) -> float:
        """Mean length of prompts and outputs, over the lengths that are named."""
        return (1 + SHORTEST) / 2 if self.has_drawn_lengths else 1.0

    @property
    def budget(self) -> int:
        """Tokens of a step at most."""
        if self.is_burst or self.has_drawn_lengths:
            return DEFAULT_BUDGET
        return self.concurrency + self.input + ADDED_BUDGET

    @property
    def seconds(self) -> float:
        """From a request's arrival to its end."""
        return self.ttft + self.tpot * (self.mean_share * self.output - 1)

    @property
    def output_rate(self) -> float:
        """Output tokens a second of all clients, each with one request under way."""
        return self.concurrency * self.mean_share * self.output / self.seconds

    @property
    def kv_format(self) -> str:
        """The KV cache's format: fp8 for checkpoints in fp8.

        InferenceX's script says so. Of AI Configurator's runs nothing does, but decoding with a
        long context takes half the time that a bfloat16 cache allows.
        """
        return "fp8" if self.weights in EIGHT_BITS else "auto"

    @property
    def is_overlapped(self) -> bool:
        """Whether the host prepares a step while the device computes the one before.

        TensorRT-LLM does; of vLLM, InferenceX's scripts ask for it (a default from 0.14 on), and AI
        Configurator's runs with 0.12 do not.
        """
        return self.backend == "trtllm" or self.has_drawn_lengths


@cache
def dense_rows() -> tuple[ServingRow, ...]:
    """All 579 rows of models without experts."""
    return tuple(_rows("h100_serving_measured.csv", has_experts=False))


@cache
def expert_rows() -> tuple[ServingRow, ...]:
    """Rows of models with experts, each once: of those whose description and limits are known."""
    rows = _rows("h100_serving_moe_measured.csv", has_experts=True)
    return tuple(dict.fromkeys(row for row in rows if row.concurrency < UNKNOWN_LIMIT))


def _rows(file_name: str, *, has_experts: bool) -> Iterator[ServingRow]:
    with (DATA / "aiconfigurator" / file_name).open(encoding="utf-8") as file:
        for r in csv.DictReader(file):
            if r["model_path"] not in NAMES:
                continue
            yield ServingRow(
                backend=r["backend"],
                model=NAMES[r["model_path"]],
                weights="fp8_block" if r["model_path"] == IN_BLOCKS else FORMATS[r["precision"]],
                ranks=round(float(r["tp_size"])),
                input=int(r["isl"]),
                output=int(r["osl"]),
                concurrency=round(float(r["concurrency"] or r["batch_size"])),
                ttft=float(r["silicon_ttft_ms"]) / 1e3,
                tpot=float(r["silicon_tpot_ms"]) / 1e3,
                has_experts=has_experts,
                experts_apart=float(r.get("moe_ep_size") or 1) == float(r["tp_size"]) > 1,
            )


def waiting(rows: Sequence[ServingRow], limit: float = 1.25) -> list[bool]:
    """Which rows wait for something other than prefill, by measurement alone.

    How long an output will be makes no difference to when its first token comes, unless requests
    queue for a place that others leave only when they end. So a row waits if its TTFT is more than
    ``limit`` times the least among rows that differ from it in output length only.
    """

    def same(row: ServingRow) -> tuple[object, ...]:
        return row.backend, row.model, row.weights, row.ranks, row.input, row.concurrency

    least: dict[tuple[object, ...], float] = {}
    for row in rows:
        least[same(row)] = min(row.ttft, least.get(same(row), row.ttft))
    return [row.ttft > limit * least[same(row)] for row in rows]
