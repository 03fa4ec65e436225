"""Protects: rounds with peers become the right verdicts, and a worker does what it is asked."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import http_throughput, memory
from benchmarks.peers import overview
from benchmarks.peers.report import TARGETS, Figures, figures, tables
from benchmarks.peers.systems import PeerFailedError, Round, System, own_systems, running
from tests.benchmarks.tiny import shrink, tiny_checkpoint
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine


def test_figures_are_medians_and_steps_those_in_which_all_decode() -> None:
    # The second request starts late: until then the first one's gaps are short.
    one = Round([[1.0, 1.1, 1.2, 3.2, 5.2], [2.2, 4.2, 6.2, 8.2, 10.2]], [[7] * 5, [8] * 5])
    other = Round(one.times, [[7] * 5, [9] * 5])
    medians = figures([one, one], [other, other])
    assert medians.step == pytest.approx(2000)
    assert medians.ttft == pytest.approx(1600)
    assert medians.tpot == pytest.approx(1e3 * (4.2 / 4 + 2.0) / 2)
    assert medians.throughput == pytest.approx(10 / 10.2)
    assert medians.agreement == 0.5


def test_verdicts_compare_with_the_best_peer() -> None:
    def of(tpot: float) -> Figures:
        return Figures(1.0, tpot, tpot, 100 / tpot, None, (tpot,))

    text = tables(
        "350m",
        {1: {"twostroke bf16": of(10), "llama.cpp bf16": of(12), "transformers bf16": of(50)}},
    )
    assert "| TPOT, 1 request, bf16, ms | 10.0 | llama.cpp bf16: 12.0 | 0.83 | <= 1 | met |" in text
    assert "8 bits" not in text  # not measured, so not judged
    text = tables("350m", {16: {"twostroke bf16": of(10), "vLLM bf16": of(10)}})
    assert (
        "| output tokens/s, 16 requests, bf16 | 10.0 | vLLM bf16: 10.0 | 1.00 | >= 1.1 | MISSED |"
        in text
    )
    text = tables("10m", {1: {"twostroke bf16": of(1.3), "llama.cpp bf16": of(2)}})
    assert (
        "| step, 1 request, bf16, ms | 1.30 | llama.cpp bf16: 2.00 | 0.65 | <= 1.2 ms | MISSED |"
        in text
    )


def test_the_overview_shows_the_hardest_comparison_and_what_is_missing(tmp_path: Path) -> None:
    def record(name: str, **systems: float) -> None:
        figures = {
            name.replace("_", " "): asdict(Figures(1, tpot, tpot, 1, None, ()))
            for name, tpot in systems.items()
        }
        (tmp_path / f"peers-{name}.json").write_text(
            json.dumps({"model": "350m", "figures": {"1": figures}})
        )

    record("one", twostroke_bf16=10, transformers_bf16=50)
    overview.main(tmp_path)
    text = (tmp_path / "peers.md").read_text()
    wanted = (
        "twostroke bf16: 50.0 | 0.20 | <= 1 | met; llama.cpp bf16 not measured |"
        " [peers-one](peers-one.md) |"
    )
    assert wanted.replace("twostroke", "transformers") in text
    record("two", twostroke_bf16=11, **{"llama.cpp_bf16": 10})
    overview.main(tmp_path)
    text = (tmp_path / "peers.md").read_text()
    assert (
        "| 11.0 | llama.cpp bf16: 10.0 | 1.10 | <= 1 | MISSED | [peers-two](peers-two.md) |" in text
    )
    # Two clients over HTTP and the memory.
    assert text.count("not measured") == len(TARGETS) - 2 + 3


def test_the_overview_reads_what_the_other_benchmarks_record() -> None:
    record = {
        "runs": {"16": [{"output_throughput": 1400.0}], "64": [{"output_throughput": 3483.0}]}
    }
    few, many = overview.over_http(record)
    assert "| 1400 | vLLM, another machine's: 700 | 2.00 | >= 2.5 | MISSED |" in few
    assert "| 3.00 | >= 2.5 | met |" in many
    peer = {
        "name": "vLLM 0.33",
        "runs": {clients: [{"output_throughput": 1000.0}] for clients in ("16", "64")},
    }
    few, _ = overview.over_http({**record, "peer": peer})
    assert "| 1400 | vLLM 0.33: 1000 | 1.40 | >= 2.5 | MISSED |" in few
    resident = asdict(
        memory.Resident(weights=700_000_000, kv=2**30, healthy=1, loaded=2_150_000_000, peak=1)
    )
    assert "| 376 | | | <= 400 MB | met |" in overview.memory_row({"resident": {"none": resident}})


def test_a_peer_over_http_gets_the_same_load_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scripted server stands in for the peer: any OpenAI server does."""
    shrink(monkeypatch, vocab_size=512)
    with running_server(ScriptedEngine()) as peer_url:
        http_throughput.main(
            peer_url=peer_url,
            peer_name="it",
            concurrency=(2,),
            requests_each=1,
            input_len=8,
            output_len=2,
            rounds=1,
            out=tmp_path,
        )
    record = json.loads((tmp_path / "http_throughput_10m.json").read_text())
    assert set(record["runs"]) == set(record["peer"]["runs"]) == {"2"}
    own_speed, theirs = (
        runs["2"][0]["output_throughput"] for runs in (record["runs"], record["peer"]["runs"])
    )
    text = (tmp_path / "http_throughput_10m.md").read_text()
    assert "against it, in turn" in text and f"| {own_speed / theirs:.2f}x of {theirs:g} |" in text


def test_a_worker_answers_with_the_tokens_of_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(tmp_path / "model", monkeypatch)
    with running(own_systems(folder, 1, ["bf16"]), tmp_path) as (worker,):
        assert worker.about["name"] == "twostroke"
        prompts = [[5, 9, 70], [3, 11, 42, 8]]
        whole = worker.run(prompts, 6)
        assert (
            [len(times) for times in whole.times]
            == [len(tokens) for tokens in whole.tokens]
            == [6, 6]
        )
        assert all(0 < a <= b for times in whole.times for a, b in pairwise(times))
        assert worker.run(prompts[1:], 6).tokens == whole.tokens[1:]


def test_a_worker_that_ends_is_an_error_with_its_log(tmp_path: Path) -> None:
    absent = System(
        "twostroke absent",
        "bf16",
        own_systems(tmp_path, 1, ["bf16"])[0].python,
        "absent_worker",
        (),
    )
    with pytest.raises(PeerFailedError, match="No module named"), running([absent], tmp_path):
        pass
