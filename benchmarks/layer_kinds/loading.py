"""Seconds until a server of each family answers, and the memory that it takes.

    python -m benchmarks.layer_kinds.loading [FAMILY ...]

Each family of the parity tests is scaled up: hidden size 2048, heads of 64 or more, a vocabulary of
32,000, random weights in bfloat16. Each server is started twice; the second start counts, when the
files are in the page cache. Then requests run, and the process's resident memory is read. Linux
only. Writes benchmarks/results/loading.json and .md.
"""

from __future__ import annotations

import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cyclopts
import httpx
import torch

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.make_checkpoint import write_tokenizer
from benchmarks.memory import status_bytes
from benchmarks.server import running_server
from tests.checkpoints import random_tensors, write_checkpoint
from tests.models.wide_families import WIDE_FAMILIES
from twostroke.models.support import parse_runnable
from twostroke.runtime.weights import loaded_bytes

RESULTS = Path(__file__).parents[1] / "results"
KV_BYTES = 32 * 2**20  # filled to the last block
VOCABULARY = 32_000
PROMPT, OUTPUT, CLIENTS = 512, 16, 8
# How often the sizes of the wide families.
WIDTHS, HEADS, HEAD_WIDTHS = 32, 8, 4
SCALED = {
    "hidden_size": WIDTHS,
    "intermediate_size": WIDTHS,
    "intermediate_size_mlp": WIDTHS,
    "moe_intermediate_size": WIDTHS,
    "shared_expert_intermediate_size": WIDTHS,
    "moe_shared_expert_intermediate_size": WIDTHS,
    "shared_intermediate_size": WIDTHS,
    "moe_latent_size": WIDTHS,
    "mamba_d_ssm": WIDTHS,
    "hidden_size_per_layer_input": HEAD_WIDTHS,
    "q_lora_rank": HEAD_WIDTHS,
    "kv_lora_rank": HEAD_WIDTHS,
    "qk_rope_head_dim": HEAD_WIDTHS,
    "qk_nope_head_dim": HEAD_WIDTHS,
    "v_head_dim": HEAD_WIDTHS,
    "head_dim": HEAD_WIDTHS,
    "global_head_dim": HEAD_WIDTHS,
    "linear_key_head_dim": HEAD_WIDTHS,
    "linear_value_head_dim": HEAD_WIDTHS,
    "mamba_n_heads": HEADS,
    "mamba_d_head": HEAD_WIDTHS,
    "mamba_num_heads": HEADS,
    "mamba_head_dim": HEAD_WIDTHS,
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Parameters and bytes of a model; seconds of its start; bytes that the process had."""

    parameters: int
    weights: int
    healthy_seconds: float
    first_token_seconds: float
    used: int
    peak: int

    @property
    def beside(self) -> int:
        """What remains after weights and the cache are taken off."""
        return self.used - self.weights - KV_BYTES


def main(*families: str, out: Path = RESULTS) -> None:
    """Measure and record.

    Args:
        families: Names of the parity tests' configurations; the first of each model type
            by default.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    loaded: dict[str, Loaded] = {}
    names = families or tuple(_first_of_each())
    for number, name in enumerate(names, 1):
        with tempfile.TemporaryDirectory(prefix="twostroke-loading-") as folder:
            loaded[name] = measure(name, Path(folder) / name)
            print(f"{number} of {len(names)}: {_row(name, loaded[name])}", flush=True)
    lines = [
        "| family | parameters | weights | healthy | first token | beside both | most |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_row(name, figures) for name, figures in loaded.items()),
    ]
    command = shlex.join(["python", "-m", "benchmarks.layer_kinds.loading", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = (
        f"{environment_text(where)}\nKV cache and states: {KV_BYTES / 1e6:.0f} MB, filled by"
        f" requests of {PROMPT} tokens in, {OUTPUT} out, {CLIENTS} at once.\nMost:"
        " with pages of the checkpoint, which the system may drop at any time.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    record = {
        "environment": where,
        "loaded": {name: asdict(figures) for name, figures in loaded.items()},
    }
    write_record(out / "loading", "Load time and memory by family", text, record)


def scaled(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration at a hidden size of 2048, with the vocabulary of the benchmarks."""
    changes: dict[str, Any] = {
        name: raw[name] * factor for name, factor in SCALED.items() if raw.get(name)
    }
    if "num_heads" in raw:  # Mamba-2 alone: twice the hidden size together
        changes |= {"num_heads": 64, "head_dim": 64}
    if "vocab_size_per_layer_input" in raw:
        changes["vocab_size_per_layer_input"] = VOCABULARY
    return {
        **raw,
        **changes,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "bos_token_id": 256,
        "eos_token_id": 257,
    }


def measure(name: str, folder: Path) -> Loaded:
    """Write the checkpoint, start it twice, use it, and read its memory."""
    raw = scaled(WIDE_FAMILIES[name])
    spec = parse_runnable(raw)
    write_checkpoint(folder, raw, random_tensors(raw, dtype=torch.bfloat16, std=0.02))
    write_tokenizer(VOCABULARY, folder)
    per_token = int(spec.kv_bytes_per_token())
    requests = CLIENTS + (-(-KV_BYTES // (per_token * PROMPT)) if per_token else CLIENTS)
    flags = ["--kv-cache-memory", str(KV_BYTES), "--max-model-len", "1024"]
    for _ in range(2):
        with running_server(str(folder), folder / "server.log", *flags) as server:
            began = time.perf_counter()
            _complete(server.url, 1, 1)
            first_token = server.ready_seconds + time.perf_counter() - began
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(lambda seed: _complete(server.url, seed, OUTPUT), range(requests)))
            used, peak = (status_bytes(server.process.pid, key) for key in ("VmRSS", "VmHWM"))
    return Loaded(
        spec.num_parameters,
        loaded_bytes(spec, 2, None),
        server.ready_seconds,
        first_token,
        used,
        peak,
    )


def _first_of_each() -> Iterator[str]:
    """The name of the first configuration of each model type."""
    seen = set()
    for name, raw in WIDE_FAMILIES.items():
        if raw["model_type"] not in seen:
            seen.add(raw["model_type"])
            yield name


def _complete(url: str, seed: int, output: int) -> None:
    draw = random.Random(seed)
    body = {
        "prompt": [draw.randrange(300, VOCABULARY) for _ in range(PROMPT)],
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
    }
    httpx.post(f"{url}/v1/completions", json=body, timeout=600, trust_env=False).raise_for_status()


def _row(name: str, loaded: Loaded) -> str:
    sizes = (f"{count / 1e6:.0f} MB" for count in (loaded.weights, loaded.beside, loaded.peak))
    weights, beside, peak = sizes
    return (
        f"| {name} | {loaded.parameters / 1e6:.0f} M | {weights} | {loaded.healthy_seconds:.2f} s"
        f" | {loaded.first_token_seconds:.2f} s | {beside} | {peak} |"
    )


if __name__ == "__main__":
    cyclopts.run(main)
