"""Recorded passes of models with recurrent layers and with latents give the plain loop's tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkpoints import write_checkpoint
from tests.models.tiny_families import FAMILIES
from tests.runtime.recorded_passes import run_each_time
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime import backends
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.passes.decode_graphs import CudaCapture
from twostroke.runtime.passes.record import record_graphs
from twostroke.runtime.reference import generate_naive

SIZES = [1, 4]


def calls() -> list[GenerationRequest]:
    """Three that share a prefix, so that states are copied; half of them sampled."""
    shared = [(7 * i) % 96 for i in range(9)]
    made = []
    for number in range(3):
        prompt = shared + [(number * 13 + i * 5) % 96 for i in range(1 + 2 * number)]
        params = SamplingParams(
            temperature=float(number % 2), top_p=0.9, seed=number, max_tokens=3 + number,
            ignore_eos=True, detokenize=False,
        )  # fmt: skip
        made.append(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, params=params)
        )
    return made


@pytest.mark.parametrize("family", ["qwen3-next", "deepseek-v2"])
def test_tokens_of_recorded_passes(
    family: str, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "load_library", lambda: None)  # a CPU's own kernels come first
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    options = {"model": str(folder), "device": str(device), "dtype": "float32", "block_size": 8}
    options |= {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_memory": 2**22}
    config = EngineConfig.from_flat({**options, "enforce_eager": True})
    executor = load_torch_executor(config)
    capture = CudaCapture() if device.type == "cuda" else run_each_time
    record_graphs(executor, SIZES, capture)
    executor.info = replace(executor.info, runs_ahead=True)
    graphs = executor.passes.graphs
    assert graphs is not None
    recorded, run = list[int](), graphs.replay

    def counted(rows: int) -> Tensor:
        recorded.append(rows)
        return run(rows)

    graphs.replay = counted  # type: ignore[method-assign]
    engine, outputs = LLMEngine(executor, config=config), dict[str, list[int]]()
    for call in calls():
        engine.submit(call)
    while engine.has_work():
        for output in engine.step():
            raise_output_error(output)
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
        engine.scheduler.kv.check_integrity()
    for call in calls():
        expected, _ = generate_naive(
            executor.model, call.prompt_token_ids, call.params, seed=call.params.seed or 0
        )
        assert outputs[call.request_id] == expected, call.request_id
    assert len(recorded) >= 2 and {2, 3} & set(recorded)  # in tables for four
    engine.close()
