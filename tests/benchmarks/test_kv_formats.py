"""Protects: the benchmark of cache formats judges what it says, with the model's own path."""

from __future__ import annotations

import torch

from benchmarks.kv_formats.quality import CONTEXT, LONG_RANGE, Text, join, judge
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.model_spec.model_files import resolve_model
from twostroke.models.support import read_runnable
from twostroke.runtime.weights import load_model


def test_fewer_bits_diverge_more() -> None:
    folder = resolve_model("pilot", None)
    model = load_model(
        open_checkpoint(folder),
        read_runnable(open_checkpoint(folder)),
        "bfloat16",
        torch.device("cpu"),
        64,
        None,
    )
    text = Text(list(range(300, 340)), list(range(5, 40)))
    scores = judge(model, [text], ("bfloat16", "int8", "int4", "fp8"))
    assert scores["bfloat16"].changed == scores["bfloat16"].divergence == 0
    assert 0 < scores["int8"].divergence < scores["int4"].divergence
    assert scores["int8"].divergence < scores["fp8"].divergence
    assert all(score.tokens == 35 for score in scores.values())


def test_long_texts_are_judged_beyond_the_short_range() -> None:
    """Conversations of 1,000 tokens whose last 100 are the answer; the last one is cut."""
    texts = join([(list(range(1000)), 900)] * 20, documents=2)
    assert [len(text.ids) for text in texts] == [CONTEXT, CONTEXT]
    for text in texts:
        assert min(text.judged) >= LONG_RANGE and max(text.judged) < CONTEXT
        assert all(text.ids[index] >= 900 for index in text.judged)
        assert len(text.judged) == 4 * 100  # those from 4,900 to 7,999
