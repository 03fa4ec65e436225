"""What the banner says that fits."""

from __future__ import annotations

import pytest

from twostroke.engine.executor import ExecutorInfo
from twostroke.server.banner import memory_summary


@pytest.mark.parametrize(
    ("blocks", "fits"),
    [(40, "1 request"), (52, "2 requests"), (51, "1 request"), (20, "0 requests")],
)
def test_requests_of_maximum_length_take_whole_blocks(blocks: int, fits: str) -> None:
    info = ExecutorInfo(
        model_id="m", vocab_size=9, max_model_len=101, num_blocks=blocks, block_size=4
    )
    assert f", {fits} of maximum length (101)" in memory_summary(info)[1]
