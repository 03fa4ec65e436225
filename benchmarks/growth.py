"""How the cost of a decode step grows with batch and context.

    python -m benchmarks.growth MODEL

The executor runs steps that no scheduler planned: so many requests of so many tokens, over a cache
full of values. Beside each stands the roofline of this machine, from two rates that the script
measures just before, since they change where others use the memory, too: the time to read the
step's weights, keys and values once, or to carry out its products, whichever is longer. Writes
benchmarks/results/growth.json, .md and .png.
"""

from __future__ import annotations

import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cyclopts
import torch

from benchmarks.environment import OtherPrograms, environment, environment_text
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest, ScheduledRequest, StepPlan
from twostroke.kernels.library import load_library
from twostroke.layers.linear import PackedLinear
from twostroke.layers.packing import pack
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.support import read_runnable
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 512, 2048, 8192)
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates that nothing here can exceed: bytes read a second, bf16 operations a second."""

    bandwidth: float
    operations: float


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of step: median ms, ms by the roofline, and which rate bounds it."""

    batch: int
    context: int
    ms: float
    roofline_ms: float
    bound: str
    machine: Machine


def main(
    model: Path, *, kv: int = 2**31, rounds: int = 9, threads: int = 2, out: Path = RESULTS
) -> None:
    """Measure, record and draw.

    Args:
        model: Folder of a checkpoint, bfloat16.
        kv: Bytes of KV cache; batches that do not fit at a context are left out.
        rounds: Steps of each kind; the median counts.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    other_programs = OtherPrograms()
    config = EngineConfig.from_flat(
        {
            "model": str(model),
            "kv_cache_memory": kv,
            "block_size": BLOCK,
            "max_num_seqs": max(BATCHES),
        }
    )
    executor = load_torch_executor(config)
    probe = Probe()
    for cache in (*executor.kv.keys, *executor.kv.values):
        cache.fill_(0.01)  # pages never written are all one page, which the cache would hold
    sheet = read_runnable(open_checkpoint(model))
    points = []
    for context in CONTEXTS:
        for batch in BATCHES:
            if (
                batch * -(-context // BLOCK) <= executor.info.num_blocks
                and context <= executor.info.max_model_len
            ):
                points.append(measure(executor, sheet, probe(rounds), batch, context, rounds))
                print(points[-1], file=sys.stderr, flush=True)
    executor.close()
    where = environment(
        shlex.join(["python", "-m", "benchmarks.growth", *sys.argv[1:]]), other_programs.share()
    )
    _write(points, where, out)


class Probe:
    """What this machine gives at the moment, the faster of two ways for each rate.

    Reading from memory: torch's sum of 512 MiB, or one row through weights of 500 MB. Products:
    PyTorch's or our own.
    """

    def __init__(self) -> None:
        self._big = torch.ones(2**26, dtype=torch.int64)
        self._weight = torch.randn(2048, 2048).bfloat16()
        self._x = torch.randn(512, 2048).bfloat16()
        library, layers = load_library(), 60
        self._layers = [
            PackedLinear(pack(self._weight, "bfloat16"), None, library)
            for _ in range(layers)
            if library
        ]

    def __call__(self, rounds: int) -> Machine:
        x, count = self._x, 2 * len(self._x) * self._weight.numel()
        bandwidth = self._big.nbytes / _median(self._big.sum, rounds)
        operations = count / _median(lambda: torch.nn.functional.linear(x, self._weight), rounds)
        if self._layers:
            size = sum(layer.nbytes for layer in self._layers)
            bandwidth = max(
                bandwidth, size / _median(lambda: [layer(x[:1]) for layer in self._layers], rounds)
            )
            operations = max(operations, count / _median(lambda: self._layers[0](x), rounds))
        return Machine(bandwidth, operations)


def _median(run: Callable[[], object], rounds: int) -> float:
    run()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure(
    executor: TorchExecutor,
    sheet: ModelSpec,
    machine: Machine,
    batch: int,
    context: int,
    rounds: int,
) -> Point:
    """Steps that decode one token of ``batch`` requests of ``context`` tokens each."""
    blocks = list(range(executor.info.num_blocks))
    random.Random(0).shuffle(blocks)
    blocks_per_request = -(-context // BLOCK)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    plan = StepPlan(0, 0.0)
    for index in range(batch):
        name = f"{batch}-{context}-{index}"
        spec = ResolvedRequest(
            request_id=name,
            parent_id=name,
            prompt_token_ids=[300 + index] * (context - 1),
            params=params,
            max_total_tokens=executor.info.max_model_len,
        )
        table = blocks[index * blocks_per_request : (index + 1) * blocks_per_request]
        plan.new_requests[name] = NewRequest(spec, [300 + index])
        plan.add(ScheduledRequest(name, context - 1, 1, True, len(table), 0, table))
    seconds = _median(lambda: executor.execute(plan), rounds)
    plan = StepPlan(0, 0.0, released=list(plan.scheduled))
    executor.execute(plan)
    read = sheet.num_parameters - sheet.vocab_size * sheet.hidden_size  # an embedding is looked up
    moved = 2 * read + batch * context * sheet.kv_bytes_per_token()
    operations = batch * (2 * read + sheet.attention_flops(1, context - 1))
    memory, arithmetic = moved / machine.bandwidth, operations / machine.operations
    bound = "memory" if memory > arithmetic else "arithmetic"
    return Point(batch, context, seconds * 1e3, max(memory, arithmetic) * 1e3, bound, machine)


def _write(points: Sequence[Point], where: dict[str, Any], folder: Path) -> None:
    lines = [
        "| context | batch | step, ms | roofline, ms | bound by | ratio | ms a request | GB/s |",
        "|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    lines += [
        f"| {p.context} | {p.batch} | {p.ms:.1f} | {p.roofline_ms:.1f} | {p.bound} |"
        f" {p.ms / p.roofline_ms:.2f} | {p.ms / p.batch:.2f} | {p.machine.bandwidth / 1e9:.1f} |"
        for p in points
    ]
    read, products = (
        [getattr(p.machine, rate) / 1e9 for p in points] for rate in ("bandwidth", "operations")
    )
    text = (
        f"# How the cost of a decode step grows\n\n{environment_text(where)}\nThis machine,"
        f" measured before each kind of step: {min(read):.1f} to {max(read):.1f} GB/s read,"
        f" {min(products):.0f} to {max(products):.0f} GFLOP/s in bf16.\n\n![step"
        " time](growth.png)\n\n" + "\n".join(lines) + "\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    record = {"environment": where, "points": [asdict(p) for p in points]}
    (folder / "growth.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "growth.md").write_text(text)
    draw(points, folder / "growth.png")
    print(text)


def draw(points: Sequence[Point], path: Path) -> None:
    """Step time over batch and over context; dashed: the roofline."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), dpi=90, sharey=True)
    for axes, line, x in ((left, "context", "batch"), (right, "batch", "context")):
        for value in sorted({getattr(p, line) for p in points}):
            along = sorted(
                (p for p in points if getattr(p, line) == value), key=lambda p: getattr(p, x)
            )
            if len(along) < 2:
                continue
            places = [getattr(p, x) for p in along]
            (drawn,) = axes.plot(places, [p.ms for p in along], ".-", lw=1, label=f"{line} {value}")
            axes.plot(places, [p.roofline_ms for p in along], "--", lw=0.8, color=drawn.get_color())
        axes.set(xscale="log", yscale="log", xlabel=x)
        axes.set_xticks(
            sorted({getattr(p, x) for p in points}), sorted({getattr(p, x) for p in points})
        )
        axes.legend(fontsize=7)
    left.set(ylabel="decode step, ms (dashed: roofline)")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    cyclopts.run(main)
