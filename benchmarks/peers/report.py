"""Rounds to medians, medians to tables."""

from __future__ import annotations

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
    each = [_of_round(one) for one in rounds]
    agreement = None
    if reference is not None:
        pairs = [(a, b) for mine, its in zip(rounds, reference) for a, b in zip(mine.tokens, its.tokens)]
        agreement = sum(a[0] == b[0] for a, b in pairs) / len(pairs)
    ttft, tpot, step, throughput = (statistics.median(column) for column in zip(*each))
    return Figures(ttft, tpot, step, throughput, agreement, tuple(one[1] for one in each))


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


Found = Mapping[int, Mapping[str, Figures]]  # by concurrency, by system


@dataclass(frozen=True, slots=True)
class Target:
    """A line of what is to be reached: a ratio of twostroke's figure to the best of its peers'."""

    measure: str
    concurrency: int
    figure: str
    own: str
    peers: tuple[str, ...]
    reach: float

    def line(self, found: Found) -> str | None:
        """As a row of a table, or nothing if a side was not measured."""
        here = {name: asdict(values)[self.figure] for name, values in found.get(self.concurrency, {}).items()}
        peers = {name: here[name] for name in self.peers if name in here}
        if self.own not in here or not peers:
            return None
        higher = self.figure == "throughput"
        best = (max if higher else min)(peers, key=lambda name: peers[name])
        ratio = here[self.own] / peers[best]
        met = ratio >= self.reach if higher else ratio <= self.reach
        return (
            f"| {self.measure} | {here[self.own]:.1f} | {best}: {peers[best]:.1f} | {ratio:.2f} "
            f"| {'>=' if higher else '<='} {self.reach:g} | {'met' if met else 'MISSED'} |"
        )


BF16 = ("llama.cpp bf16", "vLLM bf16", "transformers bf16")
TARGETS = (
    Target("TPOT, 1 request, bf16, ms", 1, "tpot", "twostroke bf16", BF16, 1.0),
    Target("TPOT, 1 request, 8 bits, ms", 1, "tpot", "twostroke int8", ("llama.cpp q8_0",), 0.95),
    Target("TPOT, 1 request, 4 bits, ms", 1, "tpot", "twostroke int4", ("llama.cpp q4_0",), 1.0),
    Target("output tokens/s, 4 requests, bf16", 4, "throughput", "twostroke bf16", BF16, 1.15),
    Target("output tokens/s, 16 requests, bf16", 16, "throughput", "twostroke bf16", BF16, 1.1),
    Target("step of 16 decoding requests, bf16, ms", 16, "step", "twostroke bf16", BF16, 0.75),
    Target(
        "output tokens/s, 16 requests, int8", 16, "throughput", "twostroke int8", ("vLLM bf16", "llama.cpp q8_0"), 1.5
    ),
)


def tables(found: Found) -> str:
    """Markdown: targets, then everything."""
    lines = ["| measure | twostroke | best peer | ratio | to reach | |", "|---|---:|---:|---:|---:|---|"]
    lines += [line for target in TARGETS if (line := target.line(found))]
    lines += ["", "| requests | system | TTFT, ms | TPOT, ms | decode step, ms | output tokens/s | same first token |"]
    lines += ["|---:|---|---:|---:|---:|---:|---:|"]
    for concurrency, systems in found.items():
        for name, f in systems.items():
            same = "" if f.agreement is None else f"{f.agreement:.0%}"
            lines.append(
                f"| {concurrency} | {name} | {f.ttft:.0f} | {f.tpot:.2f} | {f.step:.2f} | {f.throughput:.1f} | {same} |"
            )
    return "\n".join(lines)
