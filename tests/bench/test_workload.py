"""Workloads: exact lengths, the same for the same seed, arrivals of the asked distribution."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from twostroke.bench.options import ServeBenchOptions, WorkloadOptions
from twostroke.bench.workload import make_warmups, make_work_items, words
from twostroke.core.errors import ConfigError


def options(**fields: Any) -> WorkloadOptions:
    lengths = {} if fields.get("dataset_name") else {"random_input_len": 8, "random_output_len": 3}
    return WorkloadOptions(**{"num_prompts": 20, **lengths, **fields})


def test_the_same_seed_is_the_same_workload() -> None:
    fields: dict[str, Any] = {"random_range_ratio": 0.5, "request_rate": 5.0}
    assert make_work_items(options(**fields)) == make_work_items(options(**fields))
    assert make_work_items(options(**fields)) != make_work_items(options(**fields, seed=1))


def test_another_rate_sends_the_same_prompts() -> None:
    slow, fast = (
        make_work_items(options(request_rate=rate, random_range_ratio=0.5)) for rate in (1.0, 9.0)
    )
    assert [item.prompt for item in slow] == [item.prompt for item in fast]
    assert slow[-1].arrival == pytest.approx(9 * fast[-1].arrival)


def test_random_lengths_and_tokens() -> None:
    items = make_work_items(options(vocab_size=30))
    assert {(len(item.prompt), item.output_len, item.arrival) for item in items} == {(8, 3, 0.0)}
    assert {token for item in items for token in item.prompt} == set(range(10, 30))
    spread = make_work_items(options(random_range_ratio=0.5, random_prefix_len=4))
    assert {len(item.prompt) for item in spread} <= set(range(8, 17))
    assert len({len(item.prompt) for item in spread}) > 3
    assert len({tuple(item.prompt[:4]) for item in spread}) == 1
    assert len({tuple(item.prompt[4:8]) for item in spread}) == 20


def test_warmups_share_nothing_with_the_run() -> None:
    items = make_work_items(options())
    (warmup,) = make_warmups(options(), items[0], 1)
    assert len(warmup.prompt) == 8
    assert warmup.prompt[:4] not in [item.prompt[:4] for item in items]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_asked_mean_and_spread(burstiness: float) -> None:
    items = make_work_items(options(num_prompts=4000, request_rate=2.0, burstiness=burstiness))
    gaps = [later.arrival - item.arrival for item, later in pairwise(items)]
    assert fmean(gaps) == pytest.approx(0.5, rel=0.1)
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.1)


def test_sharegpt_like_workload() -> None:
    items = make_work_items(options(dataset_name="sharegpt-like", num_prompts=300))
    assert 100 < fmean(len(item.prompt) for item in items) < 230
    assert 260 < fmean(item.output_len for item in items) < 420


def test_a_trace_gives_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n10.5,4,2\n10.0,6,1\n12.0,5,9\n"
    )
    items = make_work_items(options(dataset_name="trace", trace_path=path))
    assert [(item.arrival, len(item.prompt), item.output_len) for item in items] == [
        (0, 6, 1),
        (0.5, 4, 2),
        (2, 5, 9),
    ]
    assert len(make_work_items(options(dataset_name="trace", trace_path=path, num_prompts=2))) == 2


def test_words_for_routes_that_take_text() -> None:
    (item, other) = make_work_items(options(num_prompts=2))
    assert len(words(item.prompt).split(" ")) == 8
    assert words(item.prompt) == words(list(item.prompt)) != words(other.prompt)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column arrived_at"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n", "no requests"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n1,x,3\n", "line 2"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n1,5,0\n", "line 2"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n1,5\n", "line 2"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_work_items(options(dataset_name="trace", trace_path=path))
    with pytest.raises(ConfigError, match="cannot read"):
        make_work_items(options(dataset_name="trace", trace_path=tmp_path / "none.csv"))


@pytest.mark.parametrize(
    "fields",
    [
        {"request_rate": 0.0},
        {"burstiness": 2.0},
        {"dataset_name": "trace"},
        {"trace_path": Path("x")},
        {"dataset_name": "trace", "trace_path": Path("x"), "request_rate": 1.0},
        {"dataset_name": "sharegpt-like", "random_prefix_len": 3},
        {"dataset_name": "sharegpt-like", "random_input_len": 3},
        {"random_range_ratio": 1.0},
    ],
)
def test_flags_that_would_mean_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        options(**fields)


def test_goodput_targets() -> None:
    assert ServeBenchOptions(goodput=("ttft:500", "e2el:2000")).goodput_targets() == {
        "ttft": 0.5,
        "e2el": 2.0,
    }
    for bad in ("ttft", "itl:5", "tpot:fast", "tpot:-1", "tpot:nan"):
        with pytest.raises(ConfigError, match="--goodput"):
            ServeBenchOptions(goodput=(bad,))
