"""What the banner says that fits."""

from __future__ import annotations

import pytest

from twostroke.core.speculation_config import SpeculationConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.server.banner import memory_summary, speculation_summary, traces_summary


@pytest.mark.parametrize(
    ("blocks", "fits"),
    [(40, "1 request"), (52, "2 requests"), (51, "1 request"), (20, "0 requests")],
)
def test_requests_of_maximum_length_take_whole_blocks(blocks: int, fits: str) -> None:
    info = ExecutorInfo(
        model_id="m", vocab_size=9, max_model_len=101, num_blocks=blocks, block_size=4
    )
    assert f", {fits} of maximum length (101)" in memory_summary(info)[1]


def test_traces_are_named_where_they_go() -> None:
    assert traces_summary(None, None) == []
    assert traces_summary("http://a:4318", None) == ["  traces     to http://a:4318"]
    (line,) = traces_summary("http://a:4318", 0.5)
    assert line.endswith("to http://a:4318, of failures and TTFT from 0.5 s on")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (None, None),
        ('{"method": "ngram"}', "ngram: up to 8 tokens ahead, as many as pay (automatic)"),
        (
            '{"method": "draft", "model": "folder/small", "num_speculative_tokens": 3,'
            ' "adaptive": false}',
            "draft (small): always 3 tokens ahead",
        ),
    ],
)
def test_speculation_is_named_with_its_depth(settings: str | None, line: str | None) -> None:
    lines = speculation_summary(SpeculationConfig(speculative_config=settings).resolve())
    assert lines == ([] if line is None else [f"  guessing   {line}"])
