"""Protects: states in bfloat16 take half of the memory, and answers still depend on nothing else:
not on company, chunks, preemption or prefix hits.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.checkpoints import write_checkpoint
from tests.models.tiny_families import FAMILIES
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.kv_formats import StateDtype
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor

Answers = dict[str, list[int]]


def make_engine(folder: Path, states: StateDtype, **options: Any) -> LLMEngine:
    flat = {
        "model": str(folder),
        "device": "cpu",
        "block_size": 4,
        "max_model_len": 48,
        "max_num_seqs": 4,
        "kv_cache_memory": 2**19,
        "mamba_ssm_cache_dtype": states,
    }
    config = EngineConfig.from_flat(flat | options)
    return LLMEngine(load_torch_executor(config), config=config)


def answers(engine: LLMEngine, prompts: dict[str, list[int]]) -> Answers:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    found: Answers = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.submit(GenerationRequest(request_id=name, prompt_token_ids=prompt, params=params))
    while engine.has_work():
        for output in engine.step():
            found[output.request_id] += output.token_ids
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # PyTorch's operators, and the kernels
@pytest.mark.parametrize("family", ["qwen3.5", "falcon-h1"])
def test_answers_depend_on_the_prompt_alone(family: str, dtype: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES[family])
    draw = Random(family)
    common = [draw.randrange(1, 60) for _ in range(17)]
    prompts = {
        f"r{number}": common + [draw.randrange(1, 60) for _ in range(number * 3 + 1)]
        for number in range(6)
    }
    alone: Answers = {}
    for name, prompt in prompts.items():
        engine = make_engine(folder, "bfloat16", dtype=dtype, enable_prefix_caching=False)
        alone |= answers(engine, {name: prompt})
    for options in (
        {"max_num_batched_tokens": 5},  # chunks and company
        {"kv_cache_memory": 2**16},  # preemption
    ):
        engine = make_engine(folder, "bfloat16", dtype=dtype, **options)
        assert answers(engine, prompts) == alone
        again = {f"{name} again": prompt for name, prompt in prompts.items()}
        assert list(answers(engine, again).values()) == list(alone.values())  # prefix hits


def test_a_state_takes_half_of_the_memory(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["qwen3.5"])

    def matrices(states: StateDtype) -> list[int]:
        executor = make_engine(folder, states, dtype="float32").executor
        assert isinstance(executor, TorchExecutor)
        tensors = executor.kv.recurrent.tensors()
        return [tensor[0].nbytes for tensor in tensors if tensor.dim() == 4]

    assert matrices("auto") == matrices("float32") != []
    assert [2 * size for size in matrices("bfloat16")] == matrices("auto")
