"""`twostroke serve` with keys: its flags, its banner, and what it refuses before it loads."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

import twostroke.server.process
from tests.server.running import running_process
from twostroke.cli.main import run
from twostroke.gateway.options import GatewayOptions


def test_flags_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the served name reaches the engine, whose metrics carry it as vLLM's do."""
    calls: list[Any] = []
    monkeypatch.setattr(
        twostroke.server.process, "run_server", lambda *arguments: calls.append(arguments)
    )
    flags = [
        "--api-key", "a", "--api-key", "b", "--api-key-file", "keys", "--metrics-without-key",
        "--share-prefix-cache", "--requests-per-minute", "5", "--tokens-per-minute", "70",
        "--served-model-name", "x", "--served-model-name", "y", "--policy", "fair",
        "--fair-output-weight", "3", "--stall-timeout", "7",
    ]  # fmt: skip
    assert run(["serve", *flags]) == 0
    config, _, load, gateway, *_ = calls[0]
    assert gateway == GatewayOptions(
        api_key=("a", "b"), api_key_file="keys", metrics_without_key=True, share_prefix_cache=True,
        requests_per_minute=5, tokens_per_minute=70,
    )  # fmt: skip
    assert load.keywords["served_model_name"] == "x"
    assert load.keywords["stall_seconds"] == 7
    assert (config.scheduler.policy, config.scheduler.fair_output_weight) == ("fair", 3.0)


def test_help_describes_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for expected in (
        "--api-key",
        "--api-key-file",
        "--tokens-per-minute",
        "--rate-limit-storage",
        "twostroke key NAME",
        "the default is `fair`",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--api-key-file", "/nowhere/keys"], "cannot read --api-key-file /nowhere/keys"),
        (["--tokens-per-minute", "0"], "--tokens-per-minute must be 1 or more"),
        (["--policy", "unfair"], "unfair"),
        (["--fair-input-weight", "0"], "--fair-input-weight must be above 0"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("began to load")

    monkeypatch.setattr(twostroke.server.process, "load_on_thread", load)
    assert run(["serve", "--port", "0", *flags]) in (1, 2)
    assert message in capsys.readouterr().err


def test_the_banners_command_works_with_a_key() -> None:
    """The key itself stays out of the terminal and out of logs."""
    options = json.dumps({"port": 0, "gateway": {"api_key": ["sk-secret"]}})
    with running_process("-m", "tests.server.serve_scripted", options) as server:
        server.url()
        command = next(line for line in server.stderr.splitlines() if line.startswith("curl"))
        assert "sk-secret" not in server.stderr
        for key, expected in (
            ("sk-secret", "data: [DONE]"),
            ("sk-wrong", '"code":"invalid_api_key"}}'),
        ):
            environment = {**os.environ, "OPENAI_API_KEY": key}
            done = subprocess.run(
                ["sh", "-c", command + " -s"],
                check=True,
                capture_output=True,
                text=True,
                env=environment,
            )
            assert done.stdout.rstrip().endswith(expected)
