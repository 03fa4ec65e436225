"""`twostroke bench offline`: counts are exact for any batch size, by kind of step."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeExecutor
from tests.text.tiny_tokenizers import byte_level
from twostroke.bench.offline import OfflineProfile, run_offline
from twostroke.bench.options import OfflineBenchOptions
from twostroke.bench.report import offline_report, print_offline_report
from twostroke.cli.main import run
from twostroke.core.errors import ConfigError, RequestFailedError, RequestTooLargeError
from twostroke.core.output import RequestOutput
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.profile import COMPONENTS, NO_PROFILE, Profiler, StepProfiler
from twostroke.text.tokenizer import Tokenizer


def options(**fields: Any) -> OfflineBenchOptions:
    return OfflineBenchOptions(**{"num_prompts": 6, "input_len": 8, "output_len": 5, **fields})


def make_engine(profiler: Profiler = NO_PROFILE) -> LLMEngine:
    return LLMEngine(FakeExecutor(), Tokenizer(byte_level()), profiler=profiler)


@pytest.mark.parametrize(("batch_size", "prefills"), [(None, 1), (2, 3), (1, 6)])
def test_counts(batch_size: int | None, prefills: int) -> None:
    ended: list[None] = []
    engine = make_engine()
    result = run_offline(engine, options(batch_size=batch_size), 0, lambda: ended.append(None))
    assert (result.num_requests, result.input_tokens, result.output_tokens, len(ended)) == (
        6,
        48,
        30,
        6,
    )
    # Equal lengths: batches begin and end together, with one step for all prompts and four to
    # decode.
    assert (len(result.prefill_steps), len(result.decode_steps)) == (prefills, 4 * prefills)
    assert 0 < sum(result.prefill_steps + result.decode_steps) <= result.duration
    assert not engine.has_work()


def test_drafts_are_counted_and_reported() -> None:
    engine = LLMEngine(FakeExecutor(num_drafts=3), Tokenizer(byte_level()))
    result = run_offline(engine, options(output_len=30), 0)
    assert result.output_tokens == 180
    assert result.accepted > 0
    assert result.rejected > 0
    stream = StringIO()
    print_offline_report(result, stream)
    assert "Draft acceptance rate (%)" in stream.getvalue()
    report = offline_report(result, {})
    assert report["tokens_per_pass"] == 180 / (180 - result.accepted) > 1
    plain = run_offline(make_engine(), options(), 0)
    print_offline_report(plain, stream := StringIO())
    assert "Tokens a pass" not in stream.getvalue()


def test_a_profile_accounts_for_every_step() -> None:
    events: list[RequestOutput] = []
    profiler = StepProfiler()
    profile = OfflineProfile(profiler, events.append)
    result = run_offline(make_engine(profiler), options(batch_size=2), 0, profile=profile)
    assert len(events) == result.output_tokens == 30
    for steps, seconds in (
        (result.prefill_steps, result.prefill_profile),
        (result.decode_steps, result.decode_profile),
    ):
        assert list(seconds) == list(COMPONENTS)
        assert min(seconds[name] for name in ("scheduling", "detokenise", "serialise", "rest")) > 0
        # The steps were timed from outside: what timing itself costs lies between the two.
        assert sum(steps) * 0.5 < seconds.total() - seconds["serialise"] < sum(steps)


def test_what_does_not_fit_or_fails_is_raised() -> None:
    with pytest.raises(RequestTooLargeError):
        run_offline(make_engine(), options(input_len=500), 0)
    executor = FakeExecutor()
    executor.raise_next = RuntimeError("boom")
    with pytest.raises(RequestFailedError, match="boom"):
        run_offline(LLMEngine(executor, Tokenizer(byte_level())), options(), 0)
    with pytest.raises(ConfigError, match="--batch-size"):
        options(batch_size=0)


def test_the_command(monkeypatch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("twostroke.startup.load_engine", lambda _, profiler: make_engine(profiler))
    path = tmp_path / "result.json"
    flags = ["--num-prompts", "4", "--batch-size", "2", "--input-len", "8", "--output-len", "3"]
    assert run(["bench", "offline", *flags, "--output-json", str(path)]) == 0
    captured = capsys.readouterr()
    assert "Output token throughput (tok/s)" in captured.out
    assert "decode step" in captured.out
    assert captured.err == ""
    report = json.loads(path.read_text())
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (32, 12)
    assert report["median_decode_step_ms"] > 0
    assert report["model"]["model"] == "pilot"
    assert "components" not in report
    assert run(["bench", "offline", *flags, "--profile", "--output-json", str(path)]) == 0
    assert "input building" in capsys.readouterr().out
    assert json.loads(path.read_text())["components"]["decode_steps"]["serialise"] > 0
