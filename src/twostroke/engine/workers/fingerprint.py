"""Tells models apart without reading all of their weights, the same on every machine."""

from __future__ import annotations

import hashlib
import json
import mmap

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.core.config import EngineConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.workers.greeting import ModelFingerprint
from twostroke.text.tokenizer import Tokenizer

SAMPLE_BYTES = 64  # of the middle of each tensor: what was trained further differs in it
DIGITS = 16


def fingerprint_of(
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig, info: ExecutorInfo
) -> ModelFingerprint:
    """The model that an engine runs. Raises ModelLoadError where its files are gone."""
    options, cache = config.model, config.cache
    digest = hashlib.sha256()
    stated = (
        *(checkpoint.config, checkpoint.generation, info.max_model_len, info.kv_cache_dtype),
        *(options.model_impl, options.dtype, options.quantization, cache.block_size),
    )
    digest.update(json.dumps(stated, sort_keys=True, default=str).encode())
    tensors = sorted(checkpoint.tensors().items())
    for path in sorted({stored.path for _, stored in tensors}):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name, stored in tensors:
                if stored.path == path:
                    digest.update(f"{name}\0{stored.format}\0{stored.shape}\0".encode())
                    middle = stored.offset + stored.nbytes // 2
                    end = min(middle + SAMPLE_BYTES, stored.offset + stored.nbytes)
                    digest.update(data[middle:end])
    return ModelFingerprint(options.model, vocabulary_hash(tokenizer), digest.hexdigest()[:DIGITS])


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """A hash of all tokens and their ids."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    listed = json.dumps(sorted(vocabulary.items(), key=lambda item: (item[1], item[0])))
    return hashlib.sha256(listed.encode()).hexdigest()[:DIGITS]
