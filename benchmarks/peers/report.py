"""Rounds to medians, medians to tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from benchmarks.peers.systems import Round


@dataclass(frozen=True, slots=True)
class Figures:
    """One system at one concurrency; medians over rounds (of medians over requests), milliseconds.

    Attributes:
        ttft: From the round's beginning to a request's first token.
        tpot: Mean gap between a request's tokens after its first.
        step: Median gap between tokens once every request of the round decodes.
        throughput: Output tokens a second of the whole round, prompts included.
        agreement: Share of requests whose first token is that of twostroke in bf16.
        rounds: ``tpot`` of every round.
    """

    ttft: float
    tpot: float
    step: float
    throughput: float
    agreement: float | None
    rounds: tuple[float, ...]


def figures(rounds: Sequence[Round], reference: Sequence[Round] | None) -> Figures:
    """Medians over rounds; ``reference`` are the same rounds of twostroke in bf16."""
    by_round = [_of_round(one) for one in rounds]
    agreement = None
    if reference is not None:
        pairs = [
            (a, b) for mine, its in zip(rounds, reference) for a, b in zip(mine.tokens, its.tokens)
        ]
        agreement = sum(a[0] == b[0] for a, b in pairs) / len(pairs)
    ttft, tpot, step, throughput = (statistics.median(column) for column in zip(*by_round))
    return Figures(ttft, tpot, step, throughput, agreement, tuple(one[1] for one in by_round))


def _of_round(one: Round) -> tuple[float, float, float, float]:
    first = [times[0] for times in one.times]
    tpot = [(times[-1] - times[0]) / (len(times) - 1) for times in one.times]
    all_decode = max(first)
    gaps = [b - a for times in one.times for a, b in pairwise(times) if a >= all_decode]
    # A system that admits requests late may never have all of them decoding: then every gap counts.
    gaps = gaps or [b - a for times in one.times for a, b in pairwise(times)]
    tokens, seconds = sum(map(len, one.times)), max(times[-1] for times in one.times)
    return (
        statistics.median(first) * 1e3,
        statistics.median(tpot) * 1e3,
        statistics.median(gaps) * 1e3,
        tokens / seconds,
    )


FiguresByConcurrency = Mapping[int, Mapping[str, Figures]]  # and in each, by system


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of twostroke beside the best of the peers that ran in the same rounds."""

    value: float
    peer: str
    peer_value: float
    met: bool

    @property
    def ratio(self) -> float:
        return self.value / self.peer_value


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be reached on one model at one concurrency.

    Attributes:
        figure: Of ``Figures``; throughput is to be high, everything else low.
        system: Twostroke, in the format in question.
        peers: Those in question; the first is the one that was best when the target was set.
        reach: Ratio of twostroke's figure to the best peer's, or twostroke's figure itself.
        absolute: ``reach`` is the figure itself.
    """

    measure: str
    concurrency: int
    figure: str
    system: str
    peers: tuple[str, ...]
    reach: float
    model: str = "350m"
    absolute: bool = False

    @property
    def higher(self) -> bool:
        return self.figure == "throughput"

    @property
    def asked(self) -> str:
        """As tables show it: ``<= 0.95``, ``<= 1.2 ms``."""
        return f"{'>=' if self.higher else '<='} {self.reach:g}{' ms' if self.absolute else ''}"

    def compare(self, measured: FiguresByConcurrency) -> Comparison | None:
        """Nothing if a side was not measured."""
        here = {
            name: asdict(values)[self.figure]
            for name, values in measured.get(self.concurrency, {}).items()
        }
        peers = {name: here[name] for name in self.peers if name in here}
        if self.system not in here or not peers:
            return None
        best = (max if self.higher else min)(peers, key=lambda name: peers[name])
        judged = here[self.system] if self.absolute else here[self.system] / peers[best]
        met = judged >= self.reach if self.higher else judged <= self.reach
        return Comparison(here[self.system], best, peers[best], met)


LLAMA, VLLM, TRANSFORMERS = "llama.cpp bf16", "vLLM bf16", "transformers bf16"
BEST_ALONE, BEST_BATCHED = (LLAMA, VLLM, TRANSFORMERS), (VLLM, LLAMA, TRANSFORMERS)
TARGETS = (
    Target("TPOT, 1 request, bf16, ms", 1, "tpot", "twostroke bf16", BEST_ALONE, 1.0),
    Target("the same, second step", 1, "tpot", "twostroke bf16", BEST_ALONE, 0.95),
    Target(
        "output tokens/s, 4 requests, bf16", 4, "throughput", "twostroke bf16", BEST_BATCHED, 1.15
    ),
    Target(
        "output tokens/s, 16 requests, bf16", 16, "throughput", "twostroke bf16", BEST_BATCHED, 1.1
    ),
    Target(
        "step of 16 decoding requests, bf16, ms", 16, "step", "twostroke bf16", BEST_BATCHED, 0.75
    ),
    Target("TPOT, 1 request, 8 bits, ms", 1, "tpot", "twostroke int8", ("llama.cpp q8_0",), 0.95),
    Target("TPOT, 1 request, 4 bits, ms", 1, "tpot", "twostroke int4", ("llama.cpp q4_0",), 1.0),
    Target(
        "output tokens/s, 16 requests, int8",
        16,
        "throughput",
        "twostroke int8",
        (VLLM, "llama.cpp q8_0"),
        1.5,
    ),
    Target(
        "step, 1 request, bf16, ms",
        1,
        "step",
        "twostroke bf16",
        (LLAMA,),
        1.2,
        "10m",
        absolute=True,
    ),
)


def tables(model: str, measured: FiguresByConcurrency) -> str:
    """Markdown: what is asked on this model, then everything."""
    lines = [
        "| measure | twostroke | best peer | ratio | asked | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for target in TARGETS:
        if target.model == model and (one := target.compare(measured)) is not None:
            lines.append(
                f"| {target.measure} | {number(one.value)} | {one.peer}:"
                f" {number(one.peer_value)} |"
                f" {one.ratio:.2f} | {target.asked} | {verdict(one.met)} |"
            )
    lines += [
        "",
        (
            "| requests | system | TTFT, ms | TPOT, ms | decode step, ms | output tokens/s | same"
            " first token |"
        ),
    ]
    lines += ["|---:|---|---:|---:|---:|---:|---:|"]
    for concurrency, systems in measured.items():
        for name, f in systems.items():
            same = "" if f.agreement is None else f"{f.agreement:.0%}"
            lines.append(
                f"| {concurrency} | {name} | {f.ttft:.0f} | {f.tpot:.2f} | {f.step:.2f} |"
                f" {f.throughput:.1f} | {same} |"
            )
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.{max(0, 2 - int(math.log10(value)))}f}" if value >= 1 else f"{value:.2f}"


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"
