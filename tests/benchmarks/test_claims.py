"""The claims benchmark runs: on a tiny model and workloads of seconds, so that its numbers mean nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import make_checkpoint
from benchmarks.claims import chunked_prefill, continuous_batching, kv_cache, kv_waste, prefix_caching
from benchmarks.claims.report import Claim, Others, environment, shown, write_claims
from benchmarks.claims.workbench import Workbench, default_model
from twostroke.errors import ModelLoadError

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 300,
}
CLAIMS: dict[str, Callable[[Workbench], Claim]] = {
    "continuous_batching": lambda bench: continuous_batching.measure(
        bench, continuous_batching.Workload(num_requests=6, max_num_seqs=2, prompt=(3, 5), output=(2, 9))
    ),
    "kv_cache": lambda bench: kv_cache.measure(bench, kv_cache.Workload(context=40, cached=3, recomputed=1)),
    "prefix_caching": lambda bench: prefix_caching.measure(bench, prefix_caching.Workload(shared=64, requests=2)),
    "chunked_prefill": lambda bench: chunked_prefill.measure(
        bench, chunked_prefill.Workload(long_prompt=150, running=2, prompt=24, lead=3, chunks=(16, 64))
    ),
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    size = {**make_checkpoint.SIZES["10m"], **TINY}
    monkeypatch.setitem(make_checkpoint.SIZES, "10m", size)
    make_checkpoint.main("10m", str(tmp_path / "model"))
    return Workbench(str(tmp_path / "model"), "tiny", 2, tmp_path / "traces", lambda line: None)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_one_line_of_claim_measured_and_conditions(name: str, bench: Workbench) -> None:
    claim = CLAIMS[name](bench)
    assert claim.name == name
    assert "\n" not in claim.line() and claim.line().count(" | ") == 2
    assert bench.name in claim.conditions
    assert len(next(value for key, value in claim.figures.items() if key.startswith("ratio"))) == 2


def test_waste_is_what_the_last_blocks_leave_empty(bench: Workbench) -> None:
    bench.traces.mkdir()
    header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    (bench.traces / "azure_splitwise_a.csv").write_text(header + "0.5,12,1\n")
    (bench.traces / "azure_splitwise_b.csv").write_text(header + "0,16,2\n0,48,2\n9,8,3\n")
    claim = kv_waste.measure(bench, kv_waste.Workload(traces=("a", "b"), num_blocks=8))
    assert claim.figures["a"]["time_weighted_mean"] == pytest.approx(4 / 16)
    assert claim.figures["b"]["max"] == pytest.approx(8 / 16)
    assert claim.figures["b"]["steps"] == 5
    assert claim.met is False and "MISSED" in claim.line()


def test_absent_traces_are_skipped_and_named(bench: Workbench) -> None:
    claim = kv_waste.measure(bench)
    assert claim.met is None
    assert "skipped: no " in claim.line() and str(bench.traces) in claim.line()


def test_the_record_says_where_and_with_what(tmp_path: Path) -> None:
    claim = Claim(name="x", claim="X", measured="2x", conditions="none", target="2x or more", met=True)
    where = environment("python -m benchmarks.claims", Others().share())
    write_claims([claim], where, tmp_path)
    record = json.loads((tmp_path / "claims.json").read_text())
    assert record["claims"][0]["met"] is True
    assert {"cpu", "cores", "commit", "torch", "date", "command", "others_cpu_share"} <= record.keys()
    text = (tmp_path / "claims.md").read_text()
    assert "| X | 2x; target 2x or more: met | none |" in text and record["commit"] in text


def test_without_pilot_a_random_checkpoint_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: str) -> Path:
        raise ModelLoadError(f"no {model}")

    size = {**make_checkpoint.SIZES["10m"], **TINY}
    monkeypatch.setitem(make_checkpoint.SIZES, "10m", size)
    monkeypatch.setattr("benchmarks.claims.workbench.resolve_model", missing)
    with default_model(None) as (model, name):
        assert (Path(model) / "model.safetensors").is_file()
        assert "no pilot" in name
    assert not Path(model).exists()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "python -m benchmarks.x /a/b/350m --python=/c/bin/python",
            "python -m benchmarks.x .../350m --python=.../python",
        ),
        (
            "python benchmarks/x.py http://127.0.0.1:80/v1 '/a b/c'",
            "python benchmarks/x.py http://127.0.0.1:80/v1 '.../c'",
        ),
    ],
)
def test_a_record_does_not_tell_where_things_lie(command: str, expected: str) -> None:
    assert shown(command) == expected
