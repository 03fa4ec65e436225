"""A model of published sizes with random weights, made on the device: no file, no download."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostroke.engine.executor import ExecutorInfo
from twostroke.model_spec.public_models import PUBLIC
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.decoder import Decoder
from twostroke.models.parameters import Parameter
from twostroke.models.registry import decoder_family
from twostroke.models.support import parse_runnable
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.cache_layouts import cache_layouts
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.state_tensors import StateTensors
from twostroke.runtime.torch_executor import TorchExecutor

BLOCK_SIZE = 16
# Sizes of Llama 3.1 8B, from its config.json.
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
SMALL = {**LLAMA_8B, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}
SMALL |= {"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 4096}
CONFIGS = {"8b": LLAMA_8B, "small": SMALL}
STATES = 257  # slots of recurrent states: a request's each, and one more


class Model(NamedTuple):
    """One that ``benchmarks.gpu.predict`` has expectations of; ``name`` is a public model's."""

    name: str
    quantization: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(PUBLIC.read_text())[self.name]["config"]
        return config


MODELS = {
    "8B bf16": Model("llama-3.1-8b"),
    "8B fp8": Model("llama-3.1-8b", "fp8"),
    "30B-A3B bf16": Model("qwen3-30b-a3b"),
    "30B-A3B int8": Model("qwen3-30b-a3b", "int8"),
    "Qwen3-Next 80B-A3B fp8": Model("qwen3-next-80b-a3b", "fp8"),
}


class RandomParameters:
    """Normal weights with standard deviation 0.02, norms of ones; see ``ParameterSource``."""

    def __init__(
        self, expected: Sequence[Parameter], device: torch.device, dtype: torch.dtype, seed: int = 0
    ) -> None:
        self._expected = {parameter.name: parameter for parameter in expected}
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return name in self._expected

    def pop(self, name: str) -> Tensor:
        shape = self._expected.pop(name).shape
        if "norm" in name:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        return weight.normal_(0, 0.02, generator=self._generator)


def random_executor(
    config: dict[str, Any],
    device: torch.device,
    *,
    max_model_len: int,
    num_blocks: int,
    dtype: torch.dtype = torch.bfloat16,
    quantization: str | None = None,
) -> TorchExecutor:
    """An executor of such a model, with a KV cache of ``num_blocks``."""
    spec: ModelSpec = parse_runnable(config)
    family = decoder_family(spec.model_type)
    parameters = RandomParameters(family.parameters(spec), device, dtype)
    model = Decoder(spec, family, parameters, max_model_len, quantization)
    num_slots = STATES if any(model.state_shapes) else 0
    states = StateTensors(model.state_shapes, num_slots, device)
    layouts = cache_layouts(spec, "auto", dtype, BLOCK_SIZE)
    kv = KVTensors(layouts, num_blocks, device, recurrent=states)
    info = ExecutorInfo(
        model_id="random",
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        kv_bytes_per_token=int(spec.kv_bytes_per_token(str(dtype).removeprefix("torch."))),
        num_state_slots=num_slots,
        weight_bytes=model.weight_bytes,
        device=str(device),
    )
    return TorchExecutor(model, kv, attention_backend(model.spec, kv), info, [])
