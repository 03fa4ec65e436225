"""Protects: the output file with half a line, of another kind, of two runs; what is sent again."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest

from twostroke.batch.lines import BatchError, BatchOutput, BatchResponse, Key
from twostroke.batch.results import ResultsFile
from twostroke.core.errors import ConfigError, EngineError


def answer(name: str, status: int = 200, request: str = "1") -> BatchOutput:
    return BatchOutput(
        f"batch_req_{request}", name, BatchResponse(status, "r", msgspec.Raw(b'{"text":"x"}')), None
    )


def keys_in(path: Path) -> list[str | int]:
    """Keys in the file, every line of which must be whole."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [msgspec.json.decode(line, type=BatchOutput).key for line in data.splitlines()]


def write(path: Path, *outputs: BatchOutput) -> None:
    results = ResultsFile(path)
    for output in outputs:
        results.append(output)
    results.close()


def test_the_answers_in_the_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    bad = BatchOutput("batch_req_9", None, None, BatchError("invalid_line", "line 3", 3))
    write(path, answer("a"), answer("b", 400), bad)
    results = ResultsFile(path)
    assert {key: line.succeeded for key, line in results.finished.items()} == {
        "a": True,
        "b": False,
        3: False,
    }
    results.append(answer("c"))
    results.close()
    assert keys_in(path) == ["a", "b", 3, "c"]
    ResultsFile(path, overwrite=True).close()
    assert keys_in(path) == []


@pytest.mark.parametrize("missing", [1, 2, 30, 60])
def test_half_a_line_is_removed(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "out.jsonl"
    write(path, answer("a"), answer("b"))
    path.write_bytes(path.read_bytes()[:-missing])
    results = ResultsFile(path)
    # A line that lacks only its newline is whole.
    assert list(results.finished) == (["a", "b"] if missing == 1 else ["a"])
    results.append(answer("c"))
    results.close()
    assert keys_in(path) == [*results.finished]


@pytest.mark.parametrize(
    "foreign", ["my notes", '{"id": "x"}\n', "{}\n", '{"id":"batch_req_1"}\n', "[]", "\x00\x00"]
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, foreign: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(foreign)
    with pytest.raises(ConfigError, match="line 1, is no line of batch output"):
        ResultsFile(path)
    assert path.read_text() == foreign
    write(tmp_path / "out.jsonl", answer("a"))
    mixed = (tmp_path / "out.jsonl").read_text() + foreign
    path.write_text(mixed)
    with pytest.raises(ConfigError, match="line 2"):
        ResultsFile(path)
    assert path.read_text() == mixed


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = ResultsFile(path)
    with pytest.raises(ConfigError, match="another run writes"):
        ResultsFile(path)
    first.append(answer("a", 500))
    first.reconcile({"a": "batch_req_1"}, retry_failed=True)  # which puts a new file in its place
    with pytest.raises(ConfigError, match="another run writes"):
        ResultsFile(path)
    first.close()
    ResultsFile(path).close()


def test_what_is_sent_again(tmp_path: Path) -> None:
    """Failures whose request was changed, or all failures; never a request with an answer."""
    path = tmp_path / "out.jsonl"
    write(
        path,
        answer("good"),
        answer("failed", 400),
        answer("mended", 400, "old"),
        answer("stranger", 400),
    )
    request_ids: dict[Key, str] = {
        "good": "batch_req_1",
        "failed": "batch_req_1",
        "mended": "batch_req_new",
        "more": "batch_req_1",
    }
    results = ResultsFile(path)
    results.reconcile(request_ids, retry_failed=False)
    assert keys_in(path) == list(results.finished) == ["good", "failed", "stranger"]
    results.append(answer("mended"))
    results.reconcile(request_ids | {"mended": "batch_req_1"}, retry_failed=True)
    results.append(answer("failed"))
    assert keys_in(path) == list(results.finished) == ["good", "stranger", "mended", "failed"]
    with pytest.raises(ConfigError, match="answers another request under the custom_id 'good'"):
        results.reconcile({"good": "batch_req_2"}, retry_failed=True)
    results.close()
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*none/out\.jsonl: No such file"):
        ResultsFile(tmp_path / "none" / "out.jsonl")
    with pytest.raises(ConfigError, match="Is a directory"):
        ResultsFile(tmp_path)


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    """Closing tries to write once more; its error must not replace the first."""
    path = tmp_path / "out"
    results = ResultsFile(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(EngineError, match="cannot write"):
            results.append(BatchOutput("batch_req_1", "a", None, BatchError("x", "y" * 100, 1)))
        results.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = ResultsFile(path)
    assert not again.finished
    again.close()


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that others may write to, a new file under a name that they chose is theirs."""
    victim, path = tmp_path / "victim", tmp_path / "out.jsonl"
    victim.write_text("precious")
    write(path, answer("a", 500), answer("b"))
    path.chmod(0o640)
    (tmp_path / ".out.jsonl.new").symlink_to(victim)
    opened: list[tuple[str, int, int]] = []
    open_file = os.open

    def open_and_note(name: str | Path, flags: int, mode: int = 0o777) -> int:
        opened.append((Path(name).name, flags, mode))
        return open_file(name, flags, mode)

    monkeypatch.setattr(os, "open", open_and_note)
    for _ in range(2):
        results = ResultsFile(path)
        results.reconcile({"a": "batch_req_1", "b": "batch_req_1"}, retry_failed=True)
        results.append(answer("a", 500))
        results.close()
    assert victim.read_text() == "precious" and not path.is_symlink()
    assert keys_in(path) == ["b", "a"]
    assert path.stat().st_mode & 0o777 == 0o640, "those who could read it still can"
    fresh = [(name, flags, mode) for name, flags, mode in opened if name != path.name]
    assert len({name for name, _, _ in fresh}) == 2
    for _, flags, mode in fresh:
        assert flags & os.O_EXCL and flags & os.O_NOFOLLOW and mode == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {
        "victim",
        "out.jsonl",
        ".out.jsonl.new",
    }


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    write(path, answer("a", 500), answer("b"))
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", fail)
    results = ResultsFile(path)
    with pytest.raises(EngineError, match=r"cannot write .*: No space left on device"):
        results.reconcile({"a": "batch_req_1"}, retry_failed=True)
    results.close()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
