"""A prompt's vector is what a pass over the whole prompt gives, whatever else runs beside it."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import wire
from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.pooling import PoolingParams, unpack_vector
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import AddRequest
from twostroke.runtime.hooks.vectors import Vectors
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import embed_naive, generate_naive
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.server.openai.embeddings.pooling_fields import pooling_request

VOCAB, BLOCK_SIZE = 96, 8
KINDS = {"last": "lasttoken", "cls": "cls_token", "mean": "mean_tokens"}


@cache
def checkpoint(kind: str, normalise: bool = True) -> Path:
    folder = write_checkpoint(Path(mkdtemp()) / kind, tiny_config("qwen3", head_dim=16))
    modules = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}", "type": f"sentence_transformers.{name}"}
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{name}": name == KINDS[kind] for name in KINDS.values()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    return folder


def load(folder: Path, num_blocks: int = 40, **options: object) -> LLMEngine:
    fields = {
        "model": str(folder),
        "device": "cpu",
        "max_model_len": 64,
        "block_size": BLOCK_SIZE,
        "kv_cache_memory": num_blocks * BLOCK_SIZE * 2 * 2 * 2 * 16 * 4,
        **options,
    }
    config = EngineConfig.from_flat(fields)
    return LLMEngine(load_torch_executor(config), config=config)


def run(engine: LLMEngine, arrivals: dict[int, list[GenerationRequest]]) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    for step in range(2000):
        for request in arrivals.get(step, ()):
            engine.submit(request)
        outputs += engine.step() if engine.has_work() else []
        engine.scheduler.kv.check_integrity()
        if step > max(arrivals) and not engine.has_work():
            break
    assert not engine.has_work()
    assert engine.scheduler.kv.pool.num_free == engine.scheduler.kv.pool.num_blocks
    assert isinstance(engine.executor, TorchExecutor)
    assert all(len(hook.pooler) == 0 for hook in engine.executor.hooks if isinstance(hook, Vectors))
    return outputs


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(KINDS)),
    budget=st.sampled_from([1, 5, 16, 256]),
    chunk=st.none() | st.sampled_from([3, 8]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    num_blocks=st.sampled_from([8, 9, 40]),
    caching=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_vector_equals_that_of_a_whole_pass_in_any_company(
    kind: str,
    budget: int,
    chunk: int | None,
    max_num_seqs: int,
    num_blocks: int,
    caching: bool,
    seed: int,
) -> None:
    """Vectors and answers in the same steps, in chunks, with shared prefixes and preemption."""
    engine = load(
        checkpoint(kind),
        num_blocks,
        max_num_batched_tokens=budget,
        max_prefill_chunk=chunk,
        max_num_seqs=max_num_seqs,
        enable_prefix_caching=caching,
    )
    assert isinstance(engine.executor, TorchExecutor)
    model, random = engine.executor.model, Random(seed)
    shared = [random.randrange(VOCAB) for _ in range(24)]
    arrivals: dict[int, list[GenerationRequest]] = {}
    for number in range(random.randrange(1, 7)):
        prompt = shared[: random.choice([0, 8, 24])]
        prompt += [random.randrange(VOCAB) for _ in range(random.randrange(1, 20))]
        name = str(number)
        dimensions = random.choice([None, 5])
        request = pooling_request(name, prompt, PoolingParams(dimensions=dimensions))
        if random.random() < 0.4:
            params = SamplingParams(temperature=0.0, max_tokens=9, detokenize=False)
            request = GenerationRequest(request_id=name, prompt_token_ids=prompt, params=params)
        arrivals.setdefault(random.randrange(10), []).append(request)
    outputs = run(engine, arrivals)
    for request in [request for requests in arrivals.values() for request in requests]:
        own = [output for output in outputs if output.request_id == request.request_id]
        prompt = list(request.prompt_token_ids)
        tokens = [token for output in own for token in output.token_ids]
        if request.pooling is None:
            eos = engine.info.eos_token_ids
            assert tokens == generate_naive(model, prompt, request.params, eos_token_ids=eos)[0]
            continue
        (output,) = own
        assert output.finish_reason is FinishReason.STOP and not tokens
        assert output.num_used_prompt_tokens == len(prompt)
        pooling = engine.intake.prepare(request, 0.0).request.vector
        assert pooling is not None and output.vector is not None
        expected = embed_naive(model, prompt, pooling)
        assert unpack_vector(output.vector) == pytest.approx(expected, abs=2e-5)


def test_the_last_token_uses_the_prefix_cache_and_the_mean_does_not() -> None:
    prompt = list(range(1, 34))
    for kind, cached in (("last", 32), ("mean", 0), ("cls", 0)):
        engine = load(checkpoint(kind))
        first = run(engine, {0: [pooling_request("a", prompt, PoolingParams())]})
        second = run(engine, {0: [pooling_request("b", prompt, PoolingParams())]})
        assert second[0].num_cached_tokens == cached, kind
        assert first[0].vector is not None and second[0].vector is not None
        assert unpack_vector(first[0].vector) == pytest.approx(
            unpack_vector(second[0].vector), abs=1e-5
        )


def test_what_normalises_and_what_is_cut() -> None:
    engine = load(checkpoint("mean", normalise=False))
    assert isinstance(engine.executor, TorchExecutor)
    request = pooling_request("a", [5, 6, 7], PoolingParams(dimensions=7))
    (output,) = run(engine, {0: [request]})
    pooling = engine.intake.prepare(request, 0.0).request.vector
    assert pooling is not None and output.vector is not None
    vector = unpack_vector(output.vector)
    assert len(vector) == 7
    assert abs(sum(x * x for x in vector) - 1) > 0.01
    assert vector == pytest.approx(embed_naive(engine.executor.model, [5, 6, 7], pooling), abs=1e-5)


def test_a_prompt_may_fill_the_whole_context_and_no_more() -> None:
    engine = load(checkpoint("last"))
    (output,) = run(engine, {0: [pooling_request("a", [3] * 64, PoolingParams())]})
    assert output.vector is not None
    with pytest.raises(RequestTooLargeError, match="maximum context length is 64"):
        engine.submit(pooling_request("a", [3] * 65, PoolingParams()))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_a_request_may_say_whether_its_vector_has_length_one(own: bool, asked: bool | None) -> None:
    engine = load(checkpoint("mean", own))
    params = PoolingParams(normalise=asked)
    (output,) = run(engine, {0: [pooling_request("a", [5, 6, 7], params)]})
    vector = unpack_vector(output.vector or b"")
    length = math.hypot(*vector)
    assert (abs(length - 1) < 1e-5) == (own if asked is None else asked)
    (plain,) = run(engine, {0: [pooling_request("b", [5, 6, 7], PoolingParams(normalise=False))]})
    raw = unpack_vector(plain.vector or b"")
    assert [value / length for value in vector] == pytest.approx(
        [value / math.hypot(*raw) for value in raw], abs=1e-5
    )


@pytest.mark.parametrize("dimensions", [0, -1, 33, True, 10**30])
def test_dimensions_out_of_range_are_refused(dimensions: int) -> None:
    engine = load(checkpoint("last"))
    with pytest.raises(InvalidRequestError, match="dimensions must be from 1 to 32"):
        engine.submit(pooling_request("a", [3], PoolingParams(dimensions=dimensions)))


def test_the_flags_decide_what_a_generation_model_does(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", tiny_config("llama"))
    embed = pooling_request("a", [3], PoolingParams())
    answer = GenerationRequest(
        request_id="b", prompt_token_ids=[3], params=SamplingParams(detokenize=False)
    )
    with pytest.raises(InvalidRequestError, match="not made for embeddings") as refused:
        load(folder).submit(embed)
    assert refused.value.hint is not None and "--convert embed" in refused.value.hint
    load(folder).submit(answer)
    both = load(folder, convert="embed")
    both.submit(embed)
    both.submit(answer)
    pooling = load(folder, runner="pooling")
    pooling.submit(embed)
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        pooling.submit(answer)
    with pytest.raises(InvalidRequestError, match="no ranking head"):
        pooling.submit(pooling_request("c", [3], PoolingParams(task="score")))


def test_the_message_of_a_call_survives_the_wire() -> None:
    engine = load(checkpoint("mean"))
    message = engine.prepare(pooling_request("a", [3, 4], PoolingParams(dimensions=4)))
    assert wire.decode(wire.encode(message), AddRequest) == message


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_that_was_stored_without_its_head(tied: bool, tmp_path: Path) -> None:
    """As Qwen3-Embedding is: names without a prefix, and no head, tied or not."""
    raw = tiny_config("qwen3", head_dim=16, tie_word_embeddings=tied)
    whole = load(write_checkpoint(tmp_path / "whole", raw), convert="embed")
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in random_tensors(raw).items()
        if name != "lm_head.weight"
    }
    bare_raw = {**raw, "architectures": ["Qwen3Model"]}
    bare = load(write_checkpoint(tmp_path / "bare", bare_raw, tensors))
    request = pooling_request("a", [5, 6, 7], PoolingParams())
    (expected,), (output,) = run(whole, {0: [request]}), run(bare, {0: [request]})
    assert output.vector == expected.vector
    assert bare.info.generates is tied
