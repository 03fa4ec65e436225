"""A real engine on a tiny random model: for what HTTP tests must not take from a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.checkpoints import tiny_config, write_checkpoint
from tests.server.scripted import TEMPLATE
from tests.text.tiny_tokenizers import byte_level
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import (
    CacheConfig,
    EngineConfig,
    ModelOptions,
    ObservabilityConfig,
    SchedulerConfig,
)
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.operator.lora_config import LoraConfig
from twostroke.core.speculation_config import SpeculationConfig
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.observer import Observer
from twostroke.runtime.loading import load_torch_executor
from twostroke.startup import CallsTaker
from twostroke.text.tokenizer import Tokenizer

VOCAB = 331  # of the byte-level tokenizer; token 0 is its end token
CONTEXT = 256


@cache
def checkpoint() -> Path:
    raw = tiny_config("llama", vocab_size=VOCAB, eos_token_id=0, max_position_embeddings=CONTEXT)
    return write_checkpoint(Path(mkdtemp()) / "tiny", raw)


def make_engine(
    max_model_len: int = CONTEXT,
    speculation: SpeculationConfig | None = None,
    observability: ObservabilityConfig | None = None,
    observers: Sequence[Observer] = (),
    kv_cache_memory: int = 2**20,
    template: str = TEMPLATE,
    tiers: KVTierConfig | None = None,
    take_calls: CallsTaker | None = None,
    adapters: LoraConfig | None = None,
    **scheduler: Any,
) -> LLMEngine:
    """In float32, so that an answer does not depend on what shares its steps."""
    config = EngineConfig(
        model=ModelOptions(
            model="tiny", dtype="float32", max_model_len=max_model_len, convert="embed"
        ),
        cache=CacheConfig(block_size=4, kv_cache_memory=kv_cache_memory),
        scheduler=SchedulerConfig(**{"max_num_seqs": 8, **scheduler}),
        speculation=speculation or SpeculationConfig(),
        observability=observability or ObservabilityConfig(),
        tiers=tiers or KVTierConfig(),
        adapters=adapters or LoraConfig(),
    )
    tokenizer = Tokenizer(byte_level(), chat_templates={"default": template})
    assert tokenizer.vocab_size <= VOCAB
    grammars = GrammarCompiler(tokenizer)
    known = Adapters(config.adapters)
    executor = load_torch_executor(
        config, open_checkpoint(checkpoint()), grammars=grammars, adapters=known
    )
    return LLMEngine(
        executor,
        tokenizer,
        config,
        grammars=grammars,
        observers=observers,
        take_calls=take_calls,
        adapters=known,
    )


@contextmanager
def tiny_engine(**options: Any) -> Iterator[AsyncEngine]:
    """See ``make_engine`` and ``running_engine``."""
    with running_engine(make_engine(**options)) as running:
        yield running


@contextmanager
def running_engine(engine: LLMEngine) -> Iterator[AsyncEngine]:
    """An engine on its thread; every block must be free again at the end."""
    running = AsyncEngine(engine)
    try:
        yield running
    finally:
        running.close()
        engine.scheduler.kv.check_integrity()
        assert engine.scheduler.kv.pool.num_free == engine.info.num_blocks
