"""Encoders equal those of transformers, and the steps of the engine change nothing about it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.encoders import ENCODERS, write_encoder
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import (
    ConfigError,
    InvalidRequestError,
    ModelLoadError,
    RequestTooLargeError,
    TwostrokeError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.pooling import PoolingParams, unpack_vector
from twostroke.engine.llm_engine import LLMEngine
from twostroke.model_spec.json_files import read_object
from twostroke.model_spec.vectors.pooling_ability import read_pooling_ability
from twostroke.models.encoder import make_batch
from twostroke.runtime.choose_executor import load_executor
from twostroke.runtime.vectors.encoder_executor import EncoderExecutor
from twostroke.server.openai.embeddings.pooling_fields import pooling_request

PROMPTS = [
    torch.randint(5, 96, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    for length in (1, 7, 40, 7, 23)
]


def load(folder: Path, **options: Any) -> LLMEngine:
    config = EngineConfig.from_flat({"model": str(folder), "device": "cpu", **options})
    return LLMEngine(load_executor(config, open_checkpoint(folder)), config=config)


def encoder_of(engine: LLMEngine) -> EncoderExecutor:
    assert isinstance(engine.executor, EncoderExecutor)
    return engine.executor


def run(engine: LLMEngine, requests: list[GenerationRequest]) -> dict[str, RequestOutput]:
    for request in requests:
        engine.submit(request)
    outputs: dict[str, RequestOutput] = {}
    for _ in range(200):
        outputs |= {output.request_id: output for output in engine.step()}
        engine.scheduler.kv.check_integrity()
        if not engine.has_work():
            break
    assert len(encoder_of(engine).requests) <= len(requests)
    assert engine.scheduler.kv.pool.num_free == engine.scheduler.kv.pool.num_blocks
    return outputs


def types_of(model: Any, prompt: list[int], second: int | None) -> torch.Tensor:
    boundary = len(prompt) if second is None or model.config.type_vocab_size < 2 else second
    return torch.tensor([[0] * boundary + [1] * (len(prompt) - boundary)])


@pytest.mark.parametrize("architecture", ENCODERS)
def test_states_and_scores_equal_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    reference = write_encoder(tmp_path, architecture)
    encoder = encoder_of(load(tmp_path)).model
    seconds: list[int | None] = [None, 3, 20, None, 11]
    batch = make_batch(encoder.spec, PROMPTS, seconds, encoder.device)
    with torch.inference_mode():
        hidden = encoder.forward(batch)
        for index, (prompt, second) in enumerate(zip(PROMPTS, seconds, strict=True)):
            own = hidden[batch.starts[index] : batch.starts[index + 1]]
            types = types_of(reference, prompt, second)
            answer = reference(
                torch.tensor([prompt]), token_type_ids=types, output_hidden_states=True
            )
            assert (own - answer.hidden_states[-1][0]).abs().max() < 1e-4
            if architecture.endswith("ForSequenceClassification"):
                score = encoder.score(own[:1])[0]
                assert score == pytest.approx(float(torch.sigmoid(answer.logits[0, 0])), abs=1e-5)


def test_padding_tokens_that_a_client_sends_count_as_in_transformers(tmp_path: Path) -> None:
    reference = write_encoder(tmp_path, "RobertaModel")
    encoder, prompt = encoder_of(load(tmp_path)).model, [5, 1, 6, 1, 7]
    with torch.inference_mode():
        own = encoder.forward(make_batch(encoder.spec, [prompt], [None], encoder.device))
        expected = reference(torch.tensor([prompt])).last_hidden_state[0]
    assert (own - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["cls", "mean"])
@pytest.mark.parametrize("budget", [40, 64])
def test_vectors_do_not_depend_on_budget_and_company(
    kind: str, budget: int, tmp_path: Path
) -> None:
    """Whole prompts alone run, also where two do not fit into one step."""
    reference = write_encoder(tmp_path, "BertModel")
    if kind == "mean":
        modules = [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        ]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1_Pooling").mkdir()
        config = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    engine = load(tmp_path, max_num_batched_tokens=budget, max_num_seqs=3, max_prefill_chunk=4)
    requests = [
        pooling_request(str(index), prompt, PoolingParams()) for index, prompt in enumerate(PROMPTS)
    ]
    outputs = run(engine, requests)
    for index, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            states = reference(torch.tensor([prompt])).last_hidden_state[0]
        expected = states.mean(0) if kind == "mean" else states[0] / states[0].norm()
        vector = outputs[str(index)].vector
        assert vector is not None
        assert unpack_vector(vector) == pytest.approx(expected.tolist(), abs=1e-5)


def test_scores_come_through_the_engine(tmp_path: Path) -> None:
    reference = write_encoder(tmp_path, "BertForSequenceClassification")
    engine = load(tmp_path)
    params = PoolingParams(task="score", second_text_start=3)
    (output,) = run(engine, [pooling_request("a", PROMPTS[1], params)]).values()
    with torch.inference_mode():
        types = types_of(reference, PROMPTS[1], 3)
        logits = reference(torch.tensor([PROMPTS[1]]), token_type_ids=types).logits
    assert output.vector is not None
    expected = float(torch.sigmoid(logits[0, 0]))
    assert unpack_vector(output.vector) == pytest.approx([expected], abs=1e-5)
    with pytest.raises(InvalidRequestError, match="ranking model"):
        engine.submit(pooling_request("b", [5], PoolingParams()))


def test_what_an_encoder_cannot_do_is_said(tmp_path: Path) -> None:
    write_encoder(tmp_path, "RobertaModel")
    engine = load(tmp_path)
    assert engine.info.max_model_len == 46  # two positions lie before the first token's
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        engine.submit(GenerationRequest(request_id="a", prompt_token_ids=[5]))
    with pytest.raises(InvalidRequestError, match="no ranking head"):
        engine.submit(pooling_request("a", [5], PoolingParams(task="score")))
    with pytest.raises(RequestTooLargeError, match="maximum context length is 46"):
        engine.submit(pooling_request("a", [5] * 47, PoolingParams()))
    with pytest.raises(ConfigError, match="must fit into one step of 30 tokens"):
        load(tmp_path, max_model_len=40, max_num_batched_tokens=30)
    with pytest.raises(ConfigError, match="generates no text"):
        load(tmp_path, runner="generate")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"architectures": ["BertForQuestionAnswering"]}, "unsupported head"),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}},
            "2 labels",
        ),
        ({"num_attention_heads": 5}, "no multiple"),
        ({"vocab_size": 97}, "has shape"),
        ({"num_hidden_layers": 3}, "lacks"),
        ({"num_hidden_layers": 1}, "does not have"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps"),
    ],
)
def test_what_it_would_compute_differently_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_encoder(tmp_path, "BertModel")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path)


def test_broken_weights_fail_their_request_alone(tmp_path: Path) -> None:
    write_encoder(tmp_path, "BertModel")
    engine = load(tmp_path)
    encoder_of(engine).model._tables[0][9] = float("nan")
    requests = [
        pooling_request("bad", [9], PoolingParams()),
        pooling_request("good", [8], PoolingParams()),
    ]
    outputs = run(engine, requests)
    assert outputs["bad"].error is not None and outputs["bad"].error.kind == "NonFiniteLogitsError"
    assert outputs["good"].vector is not None


VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    10**400,
    1e308,
    float("nan"),
    "",
    "x",
    [],
    [[]],
    {},
    {"a": 1},
]


def test_no_value_in_the_files_does_more_than_refuse_the_model(tmp_path: Path) -> None:
    """Every field of every file, replaced by nonsense: it loads, or says what is wrong."""
    write_encoder(tmp_path, "RobertaForSequenceClassification")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in (*config, "position_embedding_type", "is_decoder", "sentence_transformers"):
        for value in VALUES:
            path.write_text(json.dumps({**config, name: value}))
            with suppress(TwostrokeError):
                load(tmp_path)


def test_no_pooling_file_does_more_than_refuse_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    module: dict[str, Any] = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    contents = [[module], [{**module, "path": "../1_Pooling"}], [{**module, "path": "2"}]]
    contents += [[{**module, key: value}] for key in module for value in VALUES]
    for modules in [*contents, *VALUES, [module] * 99, [module, module]]:
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        for config in ({}, {"pooling_mode": "max"}, {"pooling_mode_mean_tokens": True}, *VALUES):
            pooling.write_text(json.dumps(config))
            with suppress(TwostrokeError):
                read_pooling_ability(
                    tmp_path, read_object(tmp_path / "config.json"), 32, ModelOptions()
                )
