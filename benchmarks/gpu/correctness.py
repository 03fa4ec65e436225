"""Does a device give what the CPU's naive reference gives?

    python -m benchmarks.gpu.correctness --device cuda

For each model family, and for a checkpoint of 8 and of 4 bits: tiny random weights in float32,
requests that share prefixes, run in chunks, in too few blocks, greedy and sampled, through the
engine on the device, on a GPU by recorded passes too; every token is compared with the loop without
a cache on the CPU. Of one family of each kind that is recorded: at several numbers of requests, the
tokens of recorded passes are compared with those of ``--enforce-eager``. And in bfloat16: whether a
request's log-probabilities are the same bits alone and in company.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.gpu.environment import Record
from tests.checkpoints import write_checkpoint
from tests.models.tiny_families import FAMILIES
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.checkpoints.quantise import quantise
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.passes.decode_graphs import DecodeGraphs
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor

QUANTISED = ("llama int8", "llama int4")
# Families whose recorded passes are compared with eager ones: dense, experts, recurrent, latents.
RECORDED = ("llama", "qwen3-moe", "qwen3-next", "deepseek-v2")
# Requests at a time: as many as a graph has rows, and fewer; more than a product of few rows takes.
BATCHES = (1, 3, 8, 13, 21)
Answers = dict[int, dict[str, list[int]]]  # tokens of each request, by how many there were
Load = Callable[[EngineConfig], TorchExecutor]
BLOCK_SIZE = 8
BLOCKS = 24


def calls(count: int = 12) -> list[GenerationRequest]:
    """Requests of which half share a prefix, a third are sampled."""
    shared = [(7 * i) % 96 for i in range(20)]
    made = []
    for number in range(count):
        prompt = (shared if number % 2 else []) + [
            (number * 13 + i * 5) % 96 for i in range(5 + number % 12)
        ]
        params = SamplingParams(
            temperature=0.0 if number % 3 else 1.0,
            top_p=0.9,
            repetition_penalty=1.1 if number % 4 == 0 else 1.0,
            seed=number,
            max_tokens=12,
            ignore_eos=True,
            detokenize=False,
        )
        made.append(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
        )
    return made


def compare(folder: Path, family: str, device: str) -> dict[str, Any]:
    """Run one family; count the requests whose tokens differ from the reference's."""
    options = {
        "model": str(folder),
        "device": device,
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_batched_tokens": 24,
        "max_prefill_chunk": 16,
        "max_num_seqs": 12,
        "block_size": BLOCK_SIZE,
    }
    cpu = load_torch_executor(
        EngineConfig.from_flat({**options, "device": "cpu", "kv_cache_memory": 2**22})
    )
    bytes_per_block = cpu.info.kv_bytes_per_token * BLOCK_SIZE
    memory = max(BLOCKS * bytes_per_block, 2**20 if cpu.kv.recurrent.exist else 0)
    config = EngineConfig.from_flat({**options, "kv_cache_memory": memory})
    executor = load_torch_executor(config)
    engine = LLMEngine(executor, config=config)
    outputs = answers(engine, calls())
    wrong = []
    for call in calls():
        expected, _ = generate_naive(
            cpu.model, call.prompt_token_ids, call.params, seed=call.params.seed or 0
        )
        if outputs[call.request_id] != expected:
            wrong.append(call.request_id)
    preemptions = engine.scheduler.batch.num_preemptions
    executor_backend, is_recorded = executor.passes.backend, executor.passes.graphs is not None
    engine.close()
    return {
        "family": family,
        "requests": len(calls()),
        "different": wrong,
        "preemptions": preemptions,
        "backend": type(executor_backend).__name__,
        "recorded": is_recorded,
    }


def answers(engine: LLMEngine, requests: list[GenerationRequest]) -> dict[str, list[int]]:
    """The tokens of each, all of them submitted at once."""
    outputs: dict[str, list[int]] = {}
    for call in requests:
        engine.submit(call)
    while engine.has_work():
        for output in engine.step():
            raise_output_error(output)
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
        engine.scheduler.kv.check_integrity()
    return outputs


def against_eager(
    folder: Path, family: str, device: str, load: Load = load_torch_executor
) -> dict[str, Any]:
    """Run ``BATCHES`` by recorded passes and by eager ones; list the requests that differ."""
    options = {"model": str(folder), "device": device, "dtype": "float32", "max_model_len": 64}
    options |= {"max_num_seqs": max(BATCHES), "block_size": BLOCK_SIZE, "kv_cache_memory": 2**22}
    options["max_num_batched_tokens"] = 1024  # all prompts in one step, and then a token of each
    replayed, runs = set[int](), list[Answers]()
    for eager in (False, True):
        config = EngineConfig.from_flat({**options, "enforce_eager": eager})
        executor = load(config)
        if (graphs := executor.passes.graphs) is not None:
            assert not eager
            note_rows(graphs, replayed)
        engine = LLMEngine(executor, config=config)
        runs.append({count: answers(engine, calls(count)) for count in BATCHES})
        engine.close()
    row: dict[str, Any] = {"family": family, "replayed_rows": sorted(replayed)}
    if eager_too := [count for count in BATCHES if count not in replayed]:
        row["failed"] = f"no recorded pass of {eager_too} rows was run"
    return row | {"against_eager": list(BATCHES), "different": differing(*runs)}


def note_rows(graphs: DecodeGraphs, replayed: set[int]) -> None:
    """Add to ``replayed`` the number of rows of each recorded pass that runs."""
    replay = graphs.replay

    def noted(rows: int) -> Tensor:
        replayed.add(rows)
        return replay(rows)

    graphs.replay = noted  # type: ignore[method-assign]


def differing(recorded: Answers, eager: Answers) -> list[str]:
    """Which requests have other tokens, as in "request 3 of 8"."""
    return [
        f"request {request_id} of {count}"
        for count, own in eager.items()
        for request_id, tokens in own.items()
        if recorded[count].get(request_id) != tokens
    ]


def same_bits(folder: Path, device: str) -> dict[str, Any]:
    """Log-probabilities of one request alone, and beside 1, 6 and 30 others, in bfloat16."""
    options = {"model": str(folder), "device": device, "dtype": "bfloat16", "max_model_len": 128}
    options |= {"max_num_seqs": 32}
    config = EngineConfig.from_flat({**options, "kv_cache_memory": 2**24})
    seen = {}
    for others in (0, 1, 6, 30):
        executor = load_torch_executor(config)
        engine = LLMEngine(executor, config=config)
        params = SamplingParams(
            temperature=0, max_tokens=24, logprobs=1, ignore_eos=True, detokenize=False
        )
        for number in range(others + 1):
            prompt = [(number * 13 + i * 5 + 3) % 96 for i in range(20 + number % 7)]
            engine.submit(
                GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
            )
        own: list[Any] = []
        while engine.has_work():
            for output in engine.step():
                raise_output_error(output)
                if output.request_id == "0":
                    own += [entry.chosen.logprob for entry in output.logprobs or []]
        engine.close()
        seen[others] = own
    return {
        "same_bits_beside": {
            others: own == seen[0] and len(own) == 24 for others, own in seen.items()
        }
    }


def written(folder: Path, family: str) -> Path:
    """A checkpoint of a family; of the quantised ones, which a GPU keeps and a CPU decodes here."""
    base, _, to = family.partition(" ")
    whole = write_checkpoint(folder / base, FAMILIES[base])
    if not to:
        return whole
    quantise(open_checkpoint(whole), to, folder / to, lambda _: None)
    return folder / to


def attempt(family: str, device: str, *, eager: bool = False) -> dict[str, Any]:
    """One family; what fails is a row, too. ``eager``: recorded passes against eager ones."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder = written(Path(scratch), family)
            if eager:
                return against_eager(folder, family, device)
            row = compare(folder, family, device)
            return row | (same_bits(folder, device) if family == "llama" else {})
        except Exception as error:
            return {
                "family": family,
                "failed": repr(error)[:300],
                "at": traceback.format_exc()[-1500:],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--families", nargs="+", metavar="FAMILY", default=[])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    families = args.families or [*FAMILIES, *QUANTISED]
    recorded = [each for each in RECORDED if each in families and args.device != "cpu"]
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(args.workers, mp_context=context) as pool:
        attempts = [pool.submit(attempt, name, args.device, eager=True) for name in recorded]
        attempts += [pool.submit(attempt, name, args.device) for name in families]
        record = Record(args.results, "correctness", args.device)
        for each in as_completed(attempts):
            record.add(each.result())
    if any(row.get("different") or "failed" in row for row in record.rows):
        raise SystemExit("some outputs differ from the reference, or from those of eager passes")


if __name__ == "__main__":
    main()
