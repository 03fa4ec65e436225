"""Write a model of random weights with a real vocabulary of 128,000 tokens.

    python -m benchmarks.structured_output.make_model OUT [--size 350m]

Masks depend on what tokens spell, so a vocabulary of padding would measure nothing. This one is
trained by byte-pair encoding on JSON of made-up words; that takes half a minute.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import cyclopts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.make_checkpoint import SIZES, model_json, write_weights

VOCAB_SIZE = 128_000
SPECIAL_TOKENS = ["<|end|>", "<|user|>", "<|assistant|>"]
NUM_LINES = 400_000


def main(out: Path, *, size: str = "350m") -> None:
    """Write the folder ``out``.

    Args:
        size: One of those in ``benchmarks/make_checkpoint.py``.
    """
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"error: {tokenizer.get_vocab_size()} tokens instead of {VOCAB_SIZE}")
    tokenizer.save(str(out / "tokenizer.json"))
    raw = {**model_json({**SIZES[size], "vocab_size": VOCAB_SIZE}), "eos_token_id": 0}
    del raw["bos_token_id"]
    (out / "config.json").write_text(json.dumps(raw, indent=1))
    names = {"eos_token": SPECIAL_TOKENS[0]}
    (out / "tokenizer_config.json").write_text(json.dumps(names, indent=1))
    parameters = write_weights(raw, out / "model.safetensors")
    print(f"{out}: {parameters / 1e6:.0f} million parameters, {VOCAB_SIZE} tokens")


def make_tokenizer() -> Tokenizer:
    """Byte-level, as those of Llama 3 and Qwen are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(random.Random(0)), trainer)
    return tokenizer


def _lines(draw: random.Random) -> Iterator[str]:
    parts = [
        "".join(
            draw.choice("bcdfghjklmnprstvwz") + draw.choice("aeiou")
            for _ in range(draw.randint(1, 2))
        )
        + draw.choice(["", "n", "s", "r"])
        for _ in range(3000)
    ]

    def word() -> str:
        return "".join(draw.choice(parts) for _ in range(draw.randint(1, 3)))

    for _ in range(NUM_LINES):
        yield f'{{"{word()}": "{word()}", "{word()}": {draw.randint(0, 9999)}}}, {word()}.\n'


if __name__ == "__main__":
    cyclopts.run(main)
