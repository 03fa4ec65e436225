"""Targets as text: what can be written, and what is refused with a hint."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.config import ObservabilityConfig
from twostroke.core.errors import ConfigError
from twostroke.core.targets import parse_target, parse_targets


@pytest.mark.parametrize(
    ("text", "name", "limit", "allowed"),
    [
        ("ttft=p95:0.3", "ttft_p95", 0.3, Fraction(1, 20)),
        ("tpot=p50:0.025", "tpot_p50", 0.025, Fraction(1, 2)),
        ("e2el=p99.9:30", "e2el_p99.9", 30, Fraction(1, 1000)),
        ("errors=0.001", "errors", 0.001, Fraction(1, 1000)),
        ("kv=0.9", "kv_p95", 0.9, Fraction(1, 20)),
        ("queue=p90:25", "queue_p90", 25, Fraction(1, 10)),
        ("tpot=p50:0.0000001", "tpot_p50", 1e-7, Fraction(1, 2)),
        (" ttft = p95:0.3 , key=alice , model=pilot", "ttft_p95", 0.3, Fraction(1, 20)),
    ],
)
def test_what_can_be_written(text: str, name: str, limit: float, allowed: Fraction) -> None:
    target = parse_target(text)
    assert (target.name, target.limit, target.allowed) == (name, limit, allowed)
    assert parse_target(target.text) == target
    assert (target.key, target.model) == (("alice", "pilot") if "alice" in text else ("", ""))


@pytest.mark.parametrize(
    "text",
    [
        *("", "ttft", "ttft=", "ttft=fast", "itl=p95:1", "ttft=p0:1", "ttft=p100:1", "ttft=0"),
        *("ttft=-1", "ttft=p95", "errors=p95:0.1", "errors=1", "kv=0.9,key=a", "queue=9,key=*"),
        *("ttft=1,key=", "ttft=1,key=a,key=b", "ttft=1,user=a", "ttft=nan", "ttft=inf", "ttft=1,"),
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        ObservabilityConfig(target=(text,))
    assert refusal.value.message.startswith(f"--target {text}: ")
    assert refusal.value.hint is not None and "ttft=p95:0.3" in refusal.value.hint


@given(st.text(max_size=40))
def test_any_text_is_a_target_or_refused(text: str) -> None:
    try:
        target = parse_target(text)
    except ConfigError:
        return
    assert parse_target(target.text).name == target.name


def test_two_about_the_same_are_refused() -> None:
    parse_targets(["ttft=p95:1", "ttft=p99:2", "ttft=p95:1,key=a", "ttft=p95:1,model=m"])
    with pytest.raises(ConfigError, match="is about the same"):
        parse_targets(["ttft=p95:1", "ttft=p95:2"])


def test_targets_of_flags_and_file(tmp_path: Path) -> None:
    path = tmp_path / "targets"
    path.write_text("# ours\nttft=p95:0.3  # seconds\n\nerrors=0.001\n")
    config = ObservabilityConfig(target=("kv=0.9",), target_file=str(path))
    assert [target.name for target in config.targets()] == ["kv_p95", "ttft_p95", "errors"]
    for content in (b"ttft=p95:0.3\nttft=p95:0.4", b"\xff\xfe", b"slow"):
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            config.targets()
    with pytest.raises(ConfigError, match="cannot read --target-file"):
        ObservabilityConfig(target_file=str(tmp_path / "none")).targets()


@pytest.mark.parametrize("text", ["ttft=p95:500", "tpot=p50:40", "e2el=30000"])
def test_a_limit_in_milliseconds_is_asked_back(text: str) -> None:
    with pytest.raises(ConfigError, match="seconds") as caught:
        parse_target(text)
    assert "if milliseconds were meant" in str(caught.value.hint)
    assert parse_target("queue=500").limit == 500
