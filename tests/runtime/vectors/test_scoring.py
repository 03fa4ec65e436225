"""Decoders that rank pairs of texts: their scores are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InvalidRequestError, ModelLoadError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.pooling import PoolingParams, unpack_vector
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.server.openai.embeddings.pooling_fields import pooling_request

PROMPTS = [[5, 6, 7, 9], [11] * 30, [5, 6, 7, 8, 3]]
CLASSIFIER: dict[str, Any] = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}


def write(folder: Path, *, head: bool = False, **fields: Any) -> Path:
    """A tiny Qwen3; with a head for scores it has no language head."""
    raw = tiny_config("qwen3", head_dim=16, **fields)
    tensors = random_tensors(raw)
    if head:
        tensors["score.weight"] = torch.randn(1, 32, generator=torch.Generator().manual_seed(4))
        tensors.pop("lm_head.weight", None)
    return write_checkpoint(folder, raw, tensors)


def load(folder: Path, **options: object) -> LLMEngine:
    fields = {"model": str(folder), "device": "cpu", "max_model_len": 64, **options}
    config = EngineConfig.from_flat({"kv_cache_memory": 2**20, "block_size": 8, **fields})
    return LLMEngine(load_torch_executor(config), config=config)


def run(engine: LLMEngine, calls: list[GenerationRequest]) -> list[RequestOutput]:
    for call in calls:
        engine.submit(call)
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    return outputs


def scores(engine: LLMEngine, params: PoolingParams) -> list[float]:
    calls = [pooling_request(str(i), prompt, params) for i, prompt in enumerate(PROMPTS)]
    found = {}
    for output in run(engine, calls):
        assert output.vector is not None, output.error
        found[int(output.request_id)] = unpack_vector(output.vector)[0]
    return [found[i] for i in range(len(PROMPTS))]


def reference(folder: Path, name: str) -> Any:
    import transformers

    return getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("tied", [False, True])
def test_the_score_is_the_share_of_yes(tmp_path: Path, tied: bool) -> None:
    """Of "no" and "yes" as the next token, in chunks and with a cached prefix as well."""
    folder = write(tmp_path, tie_word_embeddings=tied)
    model = reference(folder, "Qwen3ForCausalLM")
    expected = []
    for prompt in PROMPTS:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1, [40, 41]]
        expected.append(float(torch.softmax(logits, -1)[1]))
    engine = load(folder, convert="classify", max_num_batched_tokens=16)
    params = PoolingParams(task="score", score_token_ids=(40, 41))
    for _ in range(2):
        assert scores(engine, params) == pytest.approx(expected, abs=1e-5)
    swapped = PoolingParams(task="score", score_token_ids=(41, 40))
    assert scores(engine, swapped) == pytest.approx([1 - score for score in expected], abs=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_a_head_scores_the_last_token(tmp_path: Path, tied: bool, activation: str) -> None:
    stated = {"sbert_ce_default_activation_function": f"torch.nn.modules.linear.{activation}"}
    folder = write(tmp_path, head=True, tie_word_embeddings=tied, **CLASSIFIER, **stated)
    model = reference(folder, "Qwen3ForSequenceClassification")
    expected = []
    for prompt in PROMPTS:
        with torch.inference_mode():
            logit = model(torch.tensor([prompt])).logits[0, 0]
        expected.append(float(torch.sigmoid(logit) if activation == "Sigmoid" else logit))
    engine = load(folder)
    assert scores(engine, PoolingParams(task="score")) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InvalidRequestError, match="this is a ranking model"):
        engine.submit(pooling_request("e", [5], PoolingParams()))
    with pytest.raises(InvalidRequestError, match="does not generate"):
        engine.submit(GenerationRequest(request_id="g", prompt_token_ids=[5]))


def test_a_model_with_two_labels_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="2 labels"):
        load(write(tmp_path / "two", head=True, **{**CLASSIFIER, "num_labels": 2}))
    with pytest.raises(ModelLoadError, match=r"score\.weight"):
        load(write(tmp_path / "none", **CLASSIFIER))
    with pytest.raises(ModelLoadError, match="classifier_from_token"):
        load(write(tmp_path / "words", classifier_from_token=["no"]))


def test_tokens_must_be_the_models(tmp_path: Path) -> None:
    engine = load(write(tmp_path), convert="classify")
    for ids in ((40, 96), (-1, 5)):
        with pytest.raises(InvalidRequestError, match="the vocabulary has 96"):
            params = PoolingParams(task="score", score_token_ids=ids)
            engine.submit(pooling_request("a", [5], params))
    with pytest.raises(InvalidRequestError, match="needs score_token_ids"):
        engine.submit(pooling_request("b", [5], PoolingParams(task="score")))


def test_a_checkpoint_can_name_its_tokens(tmp_path: Path) -> None:
    """vLLM's key in ``config.json``; without it, or under ``--convert none``, there is no score."""
    folder = write(tmp_path, classifier_from_token=["0", "1"])
    assert load(folder).info.pooling.score_tokens == ("0", "1")
    assert load(folder, convert="none").info.pooling.score_kind is None
    raw = json.loads((folder / "config.json").read_text())
    raw.pop("classifier_from_token")
    (folder / "config.json").write_text(json.dumps(raw))
    assert load(folder).info.pooling.score_kind is None
    assert load(folder, convert="classify").info.pooling.score_tokens == ("no", "yes")
