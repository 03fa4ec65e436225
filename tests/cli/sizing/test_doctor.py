"""Protects: ``twostroke doctor`` answers on stdout, exits as it says, and explains mistakes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from twostroke.cli.main import run
from twostroke.cli.sizing import doctor
from twostroke.core.errors import ConfigError
from twostroke.doctor.live import NO_TRAFFIC

SIMULATED = ["doctor", "--simulate", "llama-3.1-8b", "--gpu", "h100", "--rate", "6"]
SIMULATED += ["--input-len", "300", "--output-len", "60", "--num-requests", "60"]
RECORDED = ["simulate", "llama-3.1-8b", "--gpu", "h100", "--rate", "6", "--num-requests", "60"]
RECORDED += ["--input-len", "300", "--output-len", "60", "--max-num-seqs", "2"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "steps.jsonl"
    assert run([*RECORDED, "--record", str(path)]) == 0
    return path


def test_a_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(recording)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("steps.jsonl: 60 requests")
    assert "Cause: requests wait for a place in the batch (--max-num-seqs)" in out
    assert "Do: --max-num-seqs" in out
    assert all(len(line) <= 100 for line in lines)


def test_a_missed_target_is_an_exit_code(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--target", "ttft=p95:0.05", "--no-proof"]
    assert run(["doctor", str(recording), *target]) == 1
    assert "ttft=p95:0.05: MISSED" in capsys.readouterr().out
    assert run(["doctor", str(recording), "--target", "tpot=p95:4", "--no-proof"]) == 0
    assert "met" in capsys.readouterr().out


def test_json_has_causes_and_proofs(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(recording), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["causes"][0]["cause"] == "max-num-seqs"
    first = told["advice"][0]["effects"][0]
    assert first["after"] < first["before"]
    assert told["replay"]["requests"] == 60


def test_a_simulated_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATED, "--max-num-seqs", "2"]) == 0
    assert "--max-num-seqs" in capsys.readouterr().out


def test_the_replicas_of_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.jsonl"
    assert run([*RECORDED, "--replicas", "2", "--record", str(path)]) == 0
    assert run(["doctor", str(tmp_path / "steps.fleet.jsonl"), "--no-proof"]) == 0
    assert "2 replicas: 60 requests" in capsys.readouterr().out


def test_a_model_and_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "llama-3.1-405b", "--json"]) == 1
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["machine"]}
    assert not found["llama-3.1-405b fits"]["is_good"]
    assert "twostroke plan" in found["llama-3.1-405b fits"]["command"]
    assert found["memory bandwidth"]["measured"].endswith("GB/s")


def _empty(folder: Path) -> str:
    (folder / "empty.jsonl").write_text("")
    return str(folder / "empty.jsonl")


def _other(folder: Path) -> str:
    (folder / "other.jsonl").write_text('{"a": 1}\n')
    return str(folder / "other.jsonl")


def _idle(folder: Path) -> str:
    (folder / "idle.jsonl").write_text('{"step":0,"time":1.0,"duration":0.1}\n')
    return str(folder / "idle.jsonl")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _: "http://127.0.0.1:9", "cannot reach http://127.0.0.1:9"),
        (lambda _: "http://", "is no URL of a server"),
        (lambda _: "http://[::1", "is no URL of a server"),
        (lambda _: "HTTP://127.0.0.1:9", "cannot reach HTTP://127.0.0.1:9"),
        (lambda _: "localhost:8000", "for a server, write http://localhost:8000"),
        (lambda _: "10.0.0.1:80/v1", "for a server, write http://10.0.0.1:80/v1"),
        (lambda _: "/no/such/steps.jsonl", "cannot read"),
        (lambda _: "no-such-model", "unknown model"),
        (_empty, "holds no steps"),
        (_other, "no step event"),
        (_idle, "no request begins"),
    ],
)
def test_what_cannot_be_read_is_a_line_and_a_hint(
    make: object, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    assert run(["doctor", make(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "hint: " in captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 3


@pytest.mark.parametrize("flags", [["--gpu", "h100"], ["--rate", "8"], ["--kv-disk", "x"]])
@pytest.mark.parametrize("subject", [[], ["pilot"], ["steps.jsonl"], ["http://127.0.0.1:9"]])
def test_flags_of_a_deployment_need_simulate(
    subject: list[str], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """They were ignored: the machine was looked at, and no word was said of the GPU."""
    assert run(["doctor", *subject, *flags]) == 2
    assert "need --simulate" in capsys.readouterr().err


def test_a_configuration_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": 256,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    run(["doctor", str(path)])
    captured = capsys.readouterr()
    assert "config.json fits" in captured.out and not captured.err


def test_watching_goes_on_over_a_lull(recording: Path, tmp_path: Path) -> None:
    """The recording is emptied and comes back while somebody watches it."""
    path = tmp_path / "steps.jsonl"
    whole = recording.read_bytes()
    path.write_bytes(whole)
    command = ["-m", "twostroke", "doctor", str(path), "--watch", "1s", "--no-proof"]
    watching = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = watching.stdout, watching.stderr
    assert out is not None and err is not None
    try:
        assert any("60 requests" in line for line in out)
        path.write_bytes(b"")
        assert any("holds no steps" in line for line in err)
        path.write_bytes(whole)
        assert any("60 requests" in line for line in out)
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)
    finally:
        watching.kill()
        watching.wait()


def test_watching_begins_before_there_is_traffic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[ConfigError | int] = [ConfigError("no step yet", hint=NO_TRAFFIC), 1]

    def look(*_: object) -> int:
        answer = answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def sleep(_: float) -> None:
        if not answers:
            raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "_look_live", look)
    monkeypatch.setattr("time.sleep", sleep)
    assert run(["doctor", "http://127.0.0.1:9", "--watch", "1s"]) == 1 and not answers
    assert "no step yet" in capsys.readouterr().err
    # Alone, or where no server is, one look is the last.
    answers = [ConfigError("no step yet", hint=NO_TRAFFIC)]
    assert run(["doctor", "http://127.0.0.1:9"]) == 2
    answers = [ConfigError("cannot reach it", hint="is a server running there?")]
    assert run(["doctor", "http://127.0.0.1:9", "--watch", "1s"]) == 2


@pytest.mark.parametrize("flags", [["--target", "soon"], ["--watch", "0s"], ["--window", "never"]])
def test_flags_are_checked(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "steps.jsonl", *flags]) == 2
    assert "hint: " in capsys.readouterr().err
