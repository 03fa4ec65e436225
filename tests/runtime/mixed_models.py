"""Small models of random weights whose layers keep different things, and an engine for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.checkpoints import tiny_config
from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.core.kv_groups import KVGroups
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.state_room import state_spacing
from twostroke.layers.compiled.branches import CompiledBranch
from twostroke.layers.kv_layout import KVLayout
from twostroke.layers.linear import Linear
from twostroke.layers.recurrent_state import StateShape
from twostroke.model_spec.layer_groups import group_layers
from twostroke.model_spec.layer_specs import AttentionSpec, LatentSpec, LayerSpec, RecurrentSpec
from twostroke.model_spec.rope import RopeSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.branches.addition import Hidden
from twostroke.models.branches.attention import AttentionKind
from twostroke.models.branches.base import BranchParts, PassInputs
from twostroke.models.branches.mlp import MlpKind
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.language_model import LanguageModel
from twostroke.models.parameters import Parameter, linear_parameters, vector_parameter
from twostroke.models.support import parse_runnable
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.cache_layouts import cache_layouts
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.state_tensors import StateTensors
from twostroke.runtime.torch_executor import TorchExecutor

BLOCK, SIZE, WINDOW = 4, 6, 6


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

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x = hidden.sum()
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
        return Hidden(self._out(mixed, residual=x))

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._out

    def compiled(self) -> CompiledBranch | None:
        return None


@dataclass(frozen=True)
class LatentKind:
    """Latent attention: one compressed row for each token, and a rotary key beside it."""

    def is_in(self, layer: LayerSpec) -> bool:
        return layer.attention is not None and layer.attention.latent is not None

    def parameters(self, layer: LayerSpec, hidden: int) -> list[Parameter]:
        spec, latent = latent_of(layer)
        plain = spec.key_dim - spec.rotated
        up = spec.heads * (plain + spec.value_dim)
        return [
            vector_parameter("latent_norm", "latent.norm", hidden),
            *linear_parameters(
                "latent_q", [("latent.q", spec.heads * spec.key_dim)], hidden, False
            ),
            *linear_parameters("latent_down", [("latent.down", latent.cached)], hidden, False),
            *linear_parameters("latent_up", [("latent.up", up)], latent.value, False),
            *linear_parameters(
                "latent_out", [("latent.out", hidden)], spec.heads * spec.value_dim, False
            ),
        ]

    def build(self, layer: LayerSpec, parts: BranchParts) -> LatentBranch:
        return LatentBranch(*latent_of(layer), parts)


class LatentBranch:
    """The products that make keys and values of latents are moved to the queries and the output."""

    mixes_tokens = True
    state: tuple[StateShape, ...] = ()

    def __init__(self, spec: AttentionSpec, latent: LatentSpec, parts: BranchParts) -> None:
        self._index, self._spec, self._latent = parts.index, spec, latent
        self._norm = parts.norm("latent_norm")
        self._query, self._down = parts.linear("latent_q"), parts.linear("latent_down")
        self._out = parts.linear("latent_out")
        up = parts.tensor("latent_up.weight").view(spec.heads, -1, latent.value)
        self.plain = spec.key_dim - spec.rotated
        self.keys, self.values = up[:, : self.plain], up[:, self.plain :]  # [heads, _, latent]

    def __call__(
        self, hidden: Hidden, step: PassInputs, rows: Tensor | None, onto: Tensor | None = None
    ) -> Hidden:
        x = hidden.sum()
        query, latents = self.query_and_latents(x, step)
        plain, rotated = query[..., : self.plain], query[..., self.plain :]
        absorbed = torch.einsum("thk,hkl->thl", plain, self.keys)  # [tokens, heads, latent]
        attended = step.attention(
            self._index, torch.cat((absorbed, rotated), -1), latents.unsqueeze(1)
        )
        mixed = torch.einsum("thl,hvl->thv", attended, self.values).flatten(1)
        if rows is not None:
            mixed, x = mixed[rows], x[rows]
        return Hidden(self._out(mixed, residual=x))

    def query_and_latents(self, x: Tensor, step: PassInputs) -> tuple[Tensor, Tensor]:
        """``[tokens, heads, key_dim]``, and ``[tokens, width]`` as they are cached."""
        x = self._norm(x)
        rotation, size = step.rotations[ROPE, self._spec.rotated], self._latent.value
        query = self._query(x).view(len(x), self._spec.heads, -1)
        parts = (query[..., : self.plain], rotation.apply(query[..., self.plain :]))
        down = self._down(x)
        key = rotation.apply(down[:, None, size:])[:, 0]
        return torch.cat(parts, -1), torch.cat((down[:, :size], key), -1)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._query, self._down, self._out

    def compiled(self) -> CompiledBranch | None:
        return None


def latent_of(layer: LayerSpec) -> tuple[AttentionSpec, LatentSpec]:
    assert layer.attention is not None and layer.attention.latent is not None
    return layer.attention, layer.attention.latent


ROPE = RopeSpec()
FAMILY = DecoderFamily(branches=(DecayKind(), LatentKind(), AttentionKind(), MlpKind()))


def hybrid_spec() -> ModelSpec:
    """Recurrent, attention, recurrent, attention."""
    spec, layer = _plain()
    return replace(spec, layers=(_recurrent(layer), layer) * 2)


def mixed_spec(*, recurrent: bool = True, window: int | None = WINDOW) -> ModelSpec:
    """Every kind: two shapes with a window and without, wider keys, latents, shared, recurrent."""
    spec, layer = _plain()
    full = AttentionSpec(4, 2, 16, 16, rope=ROPE)
    wide = AttentionSpec(2, 1, 32, 32, window, qk_norm=True, rope=ROPE)
    narrow = AttentionSpec(4, 2, 16, 8, rope=ROPE)
    latent = AttentionSpec(4, 4, 16, 8, None, LatentSpec(20, 12), rope=ROPE, rotary_fraction=0.5)
    kinds = [full, wide, narrow, latent, replace(full, shares=0), replace(wide, shares=1)]
    layers = [replace(layer, attention=kind) for kind in [*kinds, wide]]
    return replace(spec, layers=(*layers[:2], *[_recurrent(layer)] * recurrent, *layers[2:]))


def _plain() -> tuple[ModelSpec, LayerSpec]:
    spec = parse_runnable(tiny_config("llama", num_hidden_layers=1))
    return spec, spec.layers[0]


def _recurrent(layer: LayerSpec) -> LayerSpec:
    return replace(layer, attention=None, recurrent=RecurrentSpec(1, SIZE * SIZE, (), 0))


def random_model(
    spec: ModelSpec,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Decoder:
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for parameter in FAMILY.parameters(spec):
        values = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.name.endswith("norm")
        tensors[parameter.name] = (1 + 0.2 * values if is_norm else 0.3 * values).to(
            device=device, dtype=dtype
        )
    return Decoder(spec, FAMILY, tensors, 256)


def engine_of(
    model: LanguageModel,
    *,
    num_blocks: int = 64,
    num_slots: int = 16,
    caching: bool = True,
    scheduler: SchedulerConfig | None = None,
    kv_format: KVCacheDtype = "auto",
    **parts: Any,
) -> LLMEngine:
    """An engine on a model; ``parts`` are further ones of its configuration."""
    shapes, members = model.state_shapes, group_layers(model.spec)
    states = StateTensors(shapes, num_slots, model.device)
    layouts = cache_layouts(model.spec, kv_format, model.dtype, BLOCK)
    kv = KVTensors(layouts, num_blocks, model.device, members.layers, states)
    scheduler = scheduler or SchedulerConfig()
    per_token = int(model.spec.kv_bytes_per_token(kv.format))
    state_bytes = sum(s.nbytes for layer in shapes for s in layer)
    info = ExecutorInfo(
        model_id="mixed",
        vocab_size=model.spec.vocab_size,
        max_model_len=200,
        num_blocks=num_blocks,
        block_size=BLOCK,
        kv_bytes_per_token=per_token,
        kv_block_bytes=int(BLOCK * members.bytes_per_slot(model.spec, kv.format)),
        kv_groups=KVGroups(members.windows, scheduler.for_device(gpu=False).max_num_batched_tokens),
        num_state_slots=num_slots if states.exist else 0,
        state_spacing=state_spacing(state_bytes, BLOCK * per_token),
    )
    executor = TorchExecutor(model, kv, attention_backend(model.spec, kv), info, [])
    cache = CacheConfig(enable_prefix_caching=caching)
    return LLMEngine(executor, config=EngineConfig(cache=cache, scheduler=scheduler, **parts))


def run(engine: LLMEngine) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
        engine.scheduler.kv.check_integrity()
    return outputs


def ask(name: str, prompt: Sequence[int], max_tokens: int, **params: object) -> GenerationRequest:
    fields: dict[str, Any] = {"temperature": 0.0, **params}
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, **fields)
    return GenerationRequest(request_id=name, prompt_token_ids=list(prompt), params=sampling)


def check_random_requests(
    engine: LLMEngine,
    model: LanguageModel,
    random: Random,
    layout: KVLayout | None = None,
    count: int = 14,
) -> None:
    """Chunks, company, shared prefixes and turns: each answer is the reference's.

    Args:
        layout: As ``generate_naive`` takes it.
    """
    shared = [random.randrange(3, 90) for _ in range(5 * BLOCK)]
    asked: dict[str, GenerationRequest] = {}
    answers: dict[str, list[int]] = {}
    for number in range(count):
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
            model,
            list(request.prompt_token_ids),
            request.params,
            seed=seed,
            max_total_tokens=200,
            layout=layout,
        )
        assert answers[name] == expected
