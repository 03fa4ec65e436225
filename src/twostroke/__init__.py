"""twostroke: an inference server for large language models that serves, shows and sizes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twostroke.core.pooling import PoolingParams
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from twostroke.core.config import EngineConfig
    from twostroke.core.generation_request import GenerationRequest
    from twostroke.llm import LLM
    from twostroke.start_serving import start_async_engine
    from twostroke.startup import load_engine

__all__ = [
    "LLM",
    "EngineConfig",
    "GenerationRequest",
    "PoolingParams",
    "SamplingParams",
    "StructuredOutputsParams",
    "load_engine",
    "start_async_engine",
]

_HOME = {
    "EngineConfig": "twostroke.core.config",
    "GenerationRequest": "twostroke.core.generation_request",
    "LLM": "twostroke.llm",
    "load_engine": "twostroke.startup",
    "start_async_engine": "twostroke.start_serving",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import twostroke`` costs nothing (PEP 562)."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
