"""Protects: rounded weights run end to end and stay near what they round, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ConfigError
from twostroke.core.sampling_params import SamplingParams
from twostroke.llm import LLM
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.weights import load_model, loaded_bytes

RAW = tiny_config("llama", hidden_size=64, intermediate_size=96, torch_dtype="bfloat16")
TOKENS = [5, 9, 70, 3, 11, 42]


def load(folder: Path, quantization: str | None, dtype: str = "auto") -> Decoder:
    return load_model(
        open_checkpoint(folder),
        read_runnable(open_checkpoint(folder)),
        dtype,
        torch.device("cpu"),
        64,
        quantization,
    )


@pytest.mark.parametrize(
    ("quantization", "most", "tied"), [("int8", 0.01, False), ("int4", 0.3, True)]
)
def test_probabilities_stay_near(
    tmp_path: Path, quantization: str, most: float, tied: bool
) -> None:
    raw = {**RAW, "tie_word_embeddings": tied}
    folder = write_checkpoint(tmp_path, raw, random_tensors(raw, std=0.1))
    exact = naive_logits(load(folder, None), TOKENS).log_softmax(-1)
    rounded = naive_logits(load(folder, quantization), TOKENS).log_softmax(-1)
    divergence = (exact.exp() * (exact - rounded)).sum(-1)  # nats per position
    assert 0 < float(divergence.mean()) < most


@pytest.mark.parametrize("tied", [False, True])
def test_weights_take_the_bytes_that_were_planned(tmp_path: Path, tied: bool) -> None:
    folder = write_checkpoint(tmp_path, {**RAW, "tie_word_embeddings": tied})
    spec = read_runnable(open_checkpoint(folder))
    for quantization in (None, "int8", "int4"):
        planned = loaded_bytes(spec, 2, quantization)
        assert load(folder, quantization).weight_bytes == pytest.approx(planned, rel=0.1)


def test_layers_that_cannot_be_rounded_are_named_once_and_stay_fast(tmp_path: Path) -> None:
    raw = {**RAW, "intermediate_size": 80, "tie_word_embeddings": True}  # no multiple of 32
    folder = write_checkpoint(tmp_path, raw, random_tensors(raw, std=0.1))
    exact = naive_logits(load(folder, None), TOKENS)
    with pytest.warns(UserWarning) as warned:
        model = load(folder, "int8")
    assert [str(warning.message).split(" linear")[0] for warning in warned] == ["2 of 9"]
    assert model.compiled_pass is not None
    assert (naive_logits(model, TOKENS) - exact).abs().mean() < 0.05 * exact.abs().mean()


def test_it_needs_bfloat16(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="float32 on cpu") as failure:
        load(write_checkpoint(tmp_path, RAW), "int8", "float32")
    assert "--dtype bfloat16" in (failure.value.hint or "")


def test_pilot_answers_with_int8_weights() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    question = [{"role": "user", "content": "What is a KV cache?"}]
    exact, rounded = (
        LLM("pilot", quantization=quantization).chat([question], params)[0].outputs[0].text
        for quantization in (None, "int8")
    )
    assert rounded[:30] == exact[:30]


def test_an_answer_does_not_depend_on_the_rest_of_the_batch(instruction_set: str) -> None:
    """Also in bfloat16: the kernels add in one order for any number of rows and any chunks."""
    llm = LLM("pilot")
    questions = [
        "What is a KV cache?",
        "why is decode slow",
        "Define TTFT",
        "tell me a joke",
        "What is paging?",
    ]
    chats = [[{"role": "user", "content": question}] for question in questions]
    params = SamplingParams(temperature=0.0, max_tokens=80)
    together = [result.outputs[0].token_ids for result in llm.chat(chats, params)]
    alone = [llm.chat([chat], params)[0].outputs[0].token_ids for chat in chats]
    assert alone == together
