"""Sliding windows: tokens of context that run at once in the same bytes of KV cache."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import make_checkpoint
from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import STANDIN, Workbench, spread
from twostroke.core.config import EngineConfig
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, random_prompt, take_step
from twostroke.startup import load_engine

NUM_LAYERS, SEES_ALL = 6, 5  # every sixth layer sees everything, as in Gemma 3
KINDS = {"no window": (), "5 of 6 layers": range(SEES_ALL), "all layers": range(NUM_LAYERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of ``prompt`` tokens, as many as run at once where layers see ``window`` tokens.

    The cache has room for ``full`` of them without a window.
    """

    requests: int = 24
    prompt: int = 2048
    output: int = 240
    window: int = 512
    chunk: int = 256
    full: int = 4


def measure(bench: Workbench, load: Workload = Workload()) -> Claim:
    """Random models of one shape: what fits depends on no weight."""
    tokens: dict[str, list[int]] = {kind: [] for kind in KINDS}
    with _checkpoints(load.window) as folders:
        for number in range(bench.rounds):
            for kind, folder in folders.items():
                bench.say(f"window: {kind}, round {number + 1} of {bench.rounds}")
                with closing(_engine(folder, load)) as engine:
                    tokens[kind].append(_most_tokens(engine, load, number))
    plain = tokens.pop("no window")
    ratios = {
        kind: [more / less for more, less in zip(counts, plain, strict=True)]
        for kind, counts in tokens.items()
    }
    return Claim(
        name="window",
        claim=f"windows of {load.window:,} tokens against none, context at once in the same bytes",
        measured="; ".join(f"in {kind} {spread(each)}" for kind, each in ratios.items()),
        conditions=(
            f"{load.requests} requests of {load.prompt:,} tokens and up to {load.output} more, KV"
            f" cache for {load.full} of them without a window, chunks of {load.chunk}; tokens that"
            f" running requests have computed together, at most; random {STANDIN} Qwen3, 5 of 6"
            f" layers windowed, or all (beside {bench.name})"
        ),
        figures={
            "ratio_in_5_of_6_layers": ratios["5 of 6 layers"],
            "ratio_in_all_layers": ratios["all layers"],
            "tokens": {"no window": plain, **tokens},
        },
    )


@contextmanager
def _checkpoints(window: int) -> Iterator[dict[str, Path]]:
    """A folder for each kind, with the same weights."""
    size = {**make_checkpoint.SIZES[STANDIN], "num_hidden_layers": NUM_LAYERS}
    raw = make_checkpoint.model_json(size) | {"model_type": "qwen3"}
    with tempfile.TemporaryDirectory(prefix="twostroke-claims-") as parent:
        weights = Path(parent) / "model.safetensors"
        make_checkpoint.write_weights(raw, weights)
        folders = {}
        for kind, windowed in KINDS.items():
            folders[kind] = folder = Path(parent) / kind
            folder.mkdir()
            os.link(weights, folder / weights.name)
            make_checkpoint.write_tokenizer(size["vocab_size"], folder)
            kinds = [
                "sliding_attention" if layer in windowed else "full_attention"
                for layer in range(NUM_LAYERS)
            ]
            fields = {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True}
            (folder / "config.json").write_text(json.dumps(raw | fields))
        yield folders


def _engine(folder: Path, load: Workload) -> LLMEngine:
    size = make_checkpoint.SIZES[STANDIN]
    per_token = 2 * 2 * NUM_LAYERS * size["num_key_value_heads"] * size["head_dim"]
    length = load.prompt + load.output
    options = {
        "model": str(folder),
        "device": "cpu",
        "max_model_len": length,
        "max_num_seqs": load.requests,
        "max_num_batched_tokens": load.chunk + load.requests,
        "max_prefill_chunk": load.chunk,
        "kv_cache_memory": load.full * -(-length // 16) * 16 * per_token,
    }
    return load_engine(EngineConfig.from_flat(options))


def _most_tokens(engine: LLMEngine, load: Workload, seed: int) -> int:
    """Most tokens of context that running requests had, until the first one ended."""
    rng, most, ended = random.Random(seed), 0, False
    for number in range(load.requests):
        prompt = random_prompt(rng, engine, load.prompt)
        engine.submit(greedy(str(number), prompt, load.output))
    while not ended:
        ended = any(output.finish_reason is not None for output in take_step(engine))
        running = engine.scheduler.running.values()
        most = max(most, sum(request.num_computed_tokens for request in running))
    for number in range(load.requests):
        engine.abort(str(number))
    return most
