"""Protects: the claims are measured and recorded as they say, on a tiny model for seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import make_checkpoint
from benchmarks.claims import (
    break_even,
    chunked_prefill,
    continuous_batching,
    kv_cache,
    kv_tiers,
    kv_waste,
    prefix_caching,
    window,
)
from benchmarks.claims.report import Claim, keep_recorded, write_claims
from benchmarks.claims.workbench import (
    Workbench,
    default_model,
    memory_bound_model,
    weights_megabytes,
)
from benchmarks.environment import OtherPrograms, environment, shown
from tests.benchmarks.tiny import shrink, tiny_checkpoint
from twostroke.checkpoints.open_checkpoint import open_checkpoint
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.reader import parse_model
from twostroke.models.support import read_runnable

# Bytes; of a server with several hundred cores.
LARGEST_CPU_CACHE = 512e6
FEW = continuous_batching.Workload(num_requests=6, max_num_seqs=2, prompt=(3, 5), output=(2, 9))
CLAIMS: dict[str, Callable[[Workbench], Claim]] = {
    "continuous_batching": lambda bench: continuous_batching.measure(bench, FEW),
    "continuous_batching_same_model": lambda bench: continuous_batching.measure_same_model(
        bench, FEW
    ),
    "kv_cache": lambda bench: kv_cache.measure(
        bench, kv_cache.Workload(context=40, cached=3, recomputed=1)
    ),
    "prefix_caching": lambda bench: prefix_caching.measure(
        bench, prefix_caching.Workload(shared=64, requests=2)
    ),
    "window": lambda bench: window.measure(
        bench, window.Workload(requests=8, prompt=96, output=24, window=20, chunk=16, full=2)
    ),
    "swap": lambda bench: kv_tiers.measure_swap(
        bench, kv_tiers.Overload(requests=4, prompt=20, output=30, kv_tokens=160)
    ),
    "warm_start": lambda bench: kv_tiers.measure_warm_start(bench, tokens=64),
    "chunked_prefill": lambda bench: chunked_prefill.measure(
        bench,
        chunked_prefill.Workload(long_prompt=150, running=2, prompt=24, lead=3, chunks=(16, 64)),
    ),
}


FEW_RATES = break_even.Workload(depths=(1, 3), rates=(0.0, 0.5, 1.0), output_len=12)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    model = str(tiny_checkpoint(tmp_path / "model", monkeypatch))
    return Workbench(model, "tiny", 2, tmp_path / "traces", lambda line: None, checkpoint=model)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_one_line_of_claim_measured_and_conditions(name: str, bench: Workbench) -> None:
    claim = CLAIMS[name](bench)
    assert claim.name == name
    assert "\n" not in claim.line() and claim.line().count(" | ") == 2
    assert bench.checkpoint is not None
    assert (
        shown(bench.checkpoint) if name == "continuous_batching" else bench.name
    ) in claim.conditions
    assert len(next(value for key, value in claim.figures.items() if key.startswith("ratio"))) == 2


@pytest.mark.parametrize("measure", [break_even.measure, break_even.measure_memory_bound])
def test_the_break_even_stands_beside_the_formula(
    measure: Callable[[Workbench, break_even.Workload], Claim], bench: Workbench
) -> None:
    for _ in range(5):  # a few milliseconds each: another program may take one side's
        claim = measure(bench, FEW_RATES)
        assert claim.line().count(" | ") == 2
        assert "depth 3" in claim.measured and "by the formula" in claim.measured
        one, three = claim.figures["curves"]
        assert len(one["speedups"]) == len(three["speedups"]) == 3
        if three["speedups"][2] > three["speedups"][0]:
            return
    raise AssertionError("all drafts right are no faster than none, in five measurements")


def steps_needed(lengths: Sequence[int], slots: int) -> dict[str, int]:
    """The least steps of each way of batching: one token per request and step."""
    ends = [0] * slots
    for length in lengths:
        ends[ends.index(min(ends))] += length
    groups = (lengths[index : index + slots] for index in range(0, len(lengths), slots))
    return {"continuous": max(ends), "static": sum(max(group) for group in groups)}


def test_neither_way_of_batching_takes_a_step_more_than_it_must(bench: Workbench) -> None:
    """A slow static batching would flatter the other; both models take the same steps."""
    steps = continuous_batching.measure(bench, FEW).figures["steps"]
    assert steps == continuous_batching.measure_same_model(bench, FEW).figures["steps"]
    with bench.engines({"any": {}}) as engines:
        for number in range(bench.rounds):
            lengths = [call.params.max_tokens or 0 for call in FEW.draw(number, engines["any"])]
            assert {name: counts[number] for name, counts in steps.items()} == steps_needed(
                lengths, FEW.max_num_seqs
            )


def test_the_last_stragglers_do_not_decide(bench: Workbench) -> None:
    """Slots that stand empty at the end of the recorded workload are a small part of it."""
    load = continuous_batching.Workload()
    with bench.engines({"any": {}}) as engines:
        for number in range(3):
            lengths = [call.params.max_tokens or 0 for call in load.draw(number, engines["any"])]
            steps = steps_needed(lengths, load.max_num_seqs)
            assert steps["continuous"] <= 1.3 * sum(lengths) / load.max_num_seqs
            assert steps["static"] >= 3.5 * steps["continuous"]


def test_the_claim_on_batching_is_about_a_model_that_no_cache_holds(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint, one is made by the project's own script, and removed."""
    fields = {"model_type": "llama", **make_checkpoint.SIZES["350m"], "max_position_embeddings": 64}
    assert parse_model(fields).weight_bytes("bf16") > LARGEST_CPU_CACHE
    shrink(monkeypatch, "350m")
    with memory_bound_model(None) as (model, name):
        weights = read_runnable(open_checkpoint(Path(model))).weight_bytes("bf16")
        assert "350m" in name
        # The file has a header of some kilobytes before them.
        assert 0 < weights_megabytes(model) - weights / 1e6 < 0.01
    assert not Path(model).exists()
    with memory_bound_model("/somewhere/given") as given:
        assert given == ("/somewhere/given", ".../given")


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
    claim = Claim(
        name="x", claim="X", measured="2x", conditions="none", target="2x or more", met=True
    )
    where = environment("python -m benchmarks.claims", OtherPrograms().share())
    write_claims([claim], where, tmp_path)
    record = json.loads((tmp_path / "claims.json").read_text())
    assert record["claims"][0]["met"] is True
    assert {
        "cpu",
        "cores",
        "commit",
        "torch",
        "date",
        "command",
        "others_cpu_share",
    } <= record.keys()
    text = (tmp_path / "claims.md").read_text()
    assert "| X | 2x; target 2x or more: met | none |" in text and record["commit"] in text


def test_a_run_without_the_traces_keeps_what_was_recorded_with_them(
    bench: Workbench, tmp_path: Path
) -> None:
    """Its date stays the first one's; before there is a record, it was not measured."""
    measured = Claim(
        name="kv_waste",
        claim=kv_waste.CLAIM,
        measured="1 %",
        conditions="x",
        target="under 4%",
        met=True,
    )
    skipped = kv_waste.measure(bench)
    assert keep_recorded([skipped], tmp_path) == [skipped]
    write_claims(
        [measured], {**environment("", None), "commit": "abc", "date": "yesterday"}, tmp_path
    )
    for _ in range(2):
        (kept,) = keep_recorded([skipped], tmp_path)
        write_claims([kept], environment("", None), tmp_path)
    assert (
        kept.line()
        == f"{kv_waste.CLAIM} | 1 %; target under 4%: met; measured at commit abc on yesterday | x"
    )
    assert kept.line().split(" | ")[1] in (tmp_path / "claims.md").read_text()
    assert keep_recorded([measured], tmp_path) == [measured]


def test_without_pilot_a_random_checkpoint_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: str) -> Path:
        raise ModelLoadError(f"no {model}")

    shrink(monkeypatch)
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
def test_a_record_has_no_paths_of_the_machine(command: str, expected: str) -> None:
    assert shown(command) == expected
