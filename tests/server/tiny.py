"""A real engine on a tiny random model: for what HTTP tests must not take from a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.checkpoints import tiny_config, write_checkpoint
from tests.server.scripted import TEMPLATE
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.text.tokenizer import Tokenizer

VOCAB = 331  # of the byte-level tokenizer; token 0 is its end token
CONTEXT = 256


@cache
def checkpoint() -> Path:
    raw = tiny_config("llama", vocab_size=VOCAB, eos_token_id=0, max_position_embeddings=CONTEXT)
    return write_checkpoint(Path(mkdtemp()) / "tiny", raw)


def make_engine(max_model_len: int = CONTEXT, **scheduler: Any) -> LLMEngine:
    """In float32, so that an answer does not depend on what shares its steps."""
    config = EngineConfig(
        model=ModelOptions(model="tiny", dtype="float32", max_model_len=max_model_len),
        cache=CacheConfig(block_size=4, kv_cache_memory=2**20),
        scheduler=SchedulerConfig(**{"max_num_seqs": 8, **scheduler}),
    )
    tokenizer = Tokenizer(byte_level(), chat_templates={"default": TEMPLATE})
    assert tokenizer.vocab_size <= VOCAB
    return LLMEngine(TorchExecutor.load(config, checkpoint()), tokenizer, config)


@contextmanager
def tiny_engine(max_model_len: int = CONTEXT, **scheduler: Any) -> Iterator[AsyncEngine]:
    """The engine on its thread; every block must be free again at the end."""
    engine = make_engine(max_model_len, **scheduler)
    running = AsyncEngine(engine)
    try:
        yield running
    finally:
        running.close()
        engine.scheduler.kv.check_integrity()
        assert engine.scheduler.kv.pool.num_free == engine.info.num_blocks
