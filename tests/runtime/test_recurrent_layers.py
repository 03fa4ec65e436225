"""Protects: recurrent layers give what the whole sequence would, wherever a request starts from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import tiny_config
from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.llm_engine import LLMEngine
from twostroke.layers.compiled_pass import CompiledBranch
from twostroke.layers.kv_layout import make_layout
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_specs import LayerSpec, RecurrentSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.models.support import parse_runnable
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.state_tensors import StateTensors
from twostroke.runtime.torch_executor import TorchExecutor

BLOCK, SIZE = 4, 6


@dataclass(frozen=True)
class DecayKind:
    """Linear attention with a decay, ``S = 0.9 S + k v``, and a sum over the last token besides."""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.recurrent is not None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        outputs = [(name, SIZE) for name in ("decay.q", "decay.k", "decay.v")]
        return [
            vector_parameter("decay_norm", "decay.norm", hidden),
            *linear_parameters("decay_qkv", outputs, hidden, False),
            *linear_parameters("decay_out", [("decay.out", hidden)], SIZE, False),
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> DecayBranch:
        return DecayBranch(parts)


class DecayBranch:
    mixes_tokens = True
    state: tuple[StateShape, ...] = (
        StateShape((SIZE, SIZE), torch.float32),
        StateShape((SIZE,), torch.float32),
    )

    def __init__(self, parts: BranchParts) -> None:
        self._index = parts.index
        self._norm = parts.norm("decay_norm")
        self._qkv, self._out = parts.linear("decay_qkv"), parts.linear("decay_out")

    def __call__(self, x: Tensor, step: PassInputs, rows: Tensor | None) -> Tensor:
        query, key, value = (
            self._qkv(self._norm(x)).view(len(x), 3, SIZE).unbind(1)
        )  # [tokens, size]
        mixed = torch.empty_like(value)
        for segment in step.states.segments:
            state, last = step.states.read(self._index, segment)
            for row in range(segment.begin, segment.end):
                state = 0.9 * state + torch.outer(key[row], value[row])
                mixed[row] = query[row] @ state + last
                last = value[row]
            step.states.write(self._index, segment, (state, last))
        if rows is not None:
            mixed, x = mixed[rows], x[rows]
        return self._out(mixed, residual=x)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._out

    def compiled(self) -> CompiledBranch | None:
        return None


FAMILY = DecoderFamily(branches=(DecayKind(), AttentionKind(), MlpKind()))


def hybrid_spec() -> ModelSpec:
    """Recurrent, attention, recurrent, attention."""
    spec = parse_runnable(tiny_config("llama", num_hidden_layers=1))
    (layer,) = spec.layers
    recurrent = RecurrentSpec(1, SIZE * SIZE, (), 0)
    pair = (replace(layer, attention=None, recurrent=recurrent), layer)
    return replace(spec, layers=pair * 2)


@pytest.fixture(scope="module")
def model() -> Decoder:
    spec = hybrid_spec()
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for parameter in FAMILY.parameters(spec):
        values = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.name.endswith("norm")
        tensors[parameter.name] = 1 + 0.2 * values if is_norm else 0.3 * values
    return Decoder(spec, FAMILY, tensors, 256)


def engine_of(
    model: Decoder,
    *,
    num_blocks: int = 64,
    num_slots: int = 16,
    caching: bool = True,
    scheduler: SchedulerConfig | None = None,
) -> LLMEngine:
    shapes = model.state_shapes
    layout = make_layout("auto", model.dtype, BLOCK, 2, 8)
    states = StateTensors(shapes, num_slots, model.device)
    kv = KVTensors(model.spec.num_layers, num_blocks, layout, model.device, [(1, 3)], states)
    info = ExecutorInfo(
        model_id="hybrid",
        vocab_size=model.spec.vocab_size,
        max_model_len=200,
        num_blocks=num_blocks,
        block_size=BLOCK,
        kv_bytes_per_token=64,
        num_state_slots=num_slots,
        state_bytes=sum(s.nbytes for layer in shapes for s in layer),
    )
    executor = TorchExecutor(model, kv, info, [])
    cache = CacheConfig(enable_prefix_caching=caching)
    config = EngineConfig(cache=cache, scheduler=scheduler or SchedulerConfig())
    return LLMEngine(executor, config=config)


def run(engine: LLMEngine) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
    return outputs


def ask(name: str, prompt: list[int], max_tokens: int, **params: object) -> GenerationRequest:
    fields: dict[str, Any] = {"temperature": 0.0, **params}
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, **fields)
    return GenerationRequest(request_id=name, prompt_token_ids=prompt, params=sampling)


@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "caching"), [(64, 32, True), (64, 32, False), (12, 7, True)]
)
def test_every_output_equals_the_reference_without_a_cache(
    model: Decoder, num_blocks: int, num_slots: int, caching: bool
) -> None:
    """Chunks, company, shared prefixes, turns, preemptions, with slots to spare or not."""
    random = Random(num_slots + caching)
    engine = engine_of(
        model,
        num_blocks=num_blocks,
        num_slots=num_slots,
        caching=caching,
        scheduler=SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=4),
    )
    shared = [random.randrange(3, 90) for _ in range(5 * BLOCK)]
    asked: dict[str, GenerationRequest] = {}
    answers: dict[str, list[int]] = {}
    for number in range(14):
        prompt = shared[: random.choice([0, 2, 5]) * BLOCK]
        prompt = prompt + [random.randrange(3, 90) for _ in range(random.randrange(1, 7))]
        if answers and random.random() < 0.4:
            before = random.choice([*answers])
            prompt = [*asked[before].prompt_token_ids, *answers[before], 5]
        prompt, name = prompt[:30], str(number)
        temperature = random.choice([0.0, 0.8])
        asked[name] = ask(
            name, prompt, random.randrange(1, 14), temperature=temperature, seed=number
        )
        engine.submit(asked[name])
        if random.random() < 0.25:
            answers |= run(engine)
    answers |= run(engine)
    for name, request in asked.items():
        seed = request.params.seed
        assert seed is not None
        expected, _ = generate_naive(
            model, list(request.prompt_token_ids), request.params, seed=seed, max_total_tokens=200
        )
        assert answers[name] == expected
    if caching and num_slots > 7:
        assert engine.scheduler.kv.prefix_hits > 0
    if num_blocks == 12:
        assert engine.scheduler.batch.num_preemptions > 0


def test_a_conversation_goes_on_from_its_last_block(model: Decoder) -> None:
    engine = engine_of(model)
    text = list(range(3, 3 + 2 * BLOCK + 1))
    for turn in range(4):
        engine.submit(ask(str(turn), text, 7))
        hits = engine.scheduler.kv.prefix_hits
        (answer,) = run(engine).values()
        found = engine.scheduler.kv.prefix_hits - hits
        assert found == 0 if turn == 0 else found == (len(text) - 3) // BLOCK * BLOCK
        text = [*text, *answer, 9, 11]
