"""What the claims share: engines on one model, prompts, timing, and progress on stderr."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import make_checkpoint
from benchmarks.environment import shown
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ModelLoadError
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, time_to_first_token
from twostroke.model_spec.model_files import resolve_model
from twostroke.startup import load_engine

KV_CACHE_BYTES = 512 * 2**20
STANDIN = "10m"
MEMORY_BOUND = "350m"  # 0.7 GB of weights: hardly any CPU's cache holds them.


@dataclass(frozen=True, slots=True)
class Workbench:
    """The model that the claims run on and how often they repeat.

    Attributes:
        model: As ``--model`` takes it.
        name: The model, as people call it.
        rounds: How often everything is measured, all variants in turn within each round.
        traces: Folder of the Azure traces, which need not exist.
        say: Takes one line of progress.
        checkpoint: Folder of a model too large for the cache, or ``None`` to make one where a claim
            needs it.
    """

    model: str
    name: str
    rounds: int
    traces: Path
    say: Callable[[str], None]
    checkpoint: str | None = None

    @contextmanager
    def engines(self, variants: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, LLMEngine]]:
        """One warmed-up engine, with weights and KV cache of its own, for each variant."""
        with ExitStack() as stack:
            engines = {}
            for name, options in variants.items():
                config = EngineConfig.from_flat(
                    {"model": self.model, "kv_cache_memory": KV_CACHE_BYTES, **options}
                )
                engines[name] = stack.enter_context(closing(load_engine(config)))
            for engine in engines.values():
                time_to_first_token(engine, greedy("warm-up", [5] * 64, 1, cache_salt="warm-up"))
            yield engines


@contextmanager
def default_model(model: str | None) -> Iterator[tuple[str, str]]:
    """A model and its name: ``model`` if given, else pilot, else a random one of that size."""
    if model is not None:
        yield model, shown(model)
        return
    try:
        resolve_model("pilot")
    except ModelLoadError:
        with _random_checkpoint(STANDIN) as folder:
            yield folder, f"random {STANDIN} Llama (no pilot in this tree)"
    else:
        yield "pilot", "pilot"


@contextmanager
def memory_bound_model(checkpoint: str | None) -> Iterator[tuple[str, str]]:
    """A model that no cache holds, and its name: ``checkpoint`` if given, else a random one."""
    if checkpoint is not None:
        yield checkpoint, shown(checkpoint)
        return
    with _random_checkpoint(MEMORY_BOUND) as folder:
        yield folder, f"random {MEMORY_BOUND} Llama"


@contextmanager
def _random_checkpoint(size: str) -> Iterator[str]:
    """A folder with a random checkpoint, as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="twostroke-claims-") as folder:
        with redirect_stdout(sys.stderr):
            make_checkpoint.main(size, folder)
        yield folder


def weights_megabytes(model: str) -> float:
    """How large a model's weights are on disk, in millions of bytes."""
    return sum(path.stat().st_size for path in resolve_model(model).glob("*.safetensors")) / 1e6


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], unit: str = "x") -> str:
    """``2.31x (2.25 to 2.40)``: the median, and the extremes of all rounds."""
    return f"{median(values):.3g}{unit} ({min(values):.3g} to {max(values):.3g})"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
