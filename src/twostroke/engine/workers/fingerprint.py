"""Tells models apart without reading all of their weights, the same on every machine."""

from __future__ import annotations

import hashlib
import json

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.samples import sample_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.workers.greeting import ModelFingerprint
from twostroke.text.tokenizer import Tokenizer

DIGITS = 16


def fingerprint_of(
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig, info: ExecutorInfo
) -> ModelFingerprint:
    """The model that an engine runs. Raises ModelLoadError where its files are gone."""
    options, cache = config.model, config.cache
    digest = hashlib.sha256()
    settings = {
        "--max-model-len": str(info.max_model_len),
        "--kv-cache-dtype": info.kv_cache_dtype,
        "--model-impl": options.model_impl,
        "--dtype": options.dtype,
        "--quantization": str(options.quantization),
        "--block-size": str(cache.block_size),
    }
    digest.update(json.dumps(settings).encode())
    for sample in sample_checkpoint(checkpoint):
        digest.update(sample)
    weights = digest.hexdigest()[:DIGITS]
    return ModelFingerprint(options.model, vocabulary_hash(tokenizer), weights, settings)


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """A hash of all tokens and their ids."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    listed = json.dumps(sorted(vocabulary.items(), key=lambda item: (item[1], item[0])))
    return hashlib.sha256(listed.encode()).hexdigest()[:DIGITS]
