"""The output file: half lines, foreign files, two runs at once, and what is sent again."""

from __future__ import annotations

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


def written(path: Path) -> list[str | int]:
    """Keys in the file, every line of which must be whole."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [msgspec.json.decode(line, type=BatchOutput).key for line in data.splitlines()]


def write(path: Path, *outputs: BatchOutput) -> None:
    results = ResultsFile(path)
    for output in outputs:
        results.append(output)
    results.close()


def test_what_is_there_is_known(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    bad = BatchOutput("batch_req_9", None, None, BatchError("invalid_line", "line 3", 3))
    write(path, answer("a"), answer("b", 400), bad)
    results = ResultsFile(path)
    assert {key: f.succeeded for key, f in results.finished.items()} == {
        "a": True,
        "b": False,
        3: False,
    }
    results.append(answer("c"))
    results.close()
    assert written(path) == ["a", "b", 3, "c"]
    ResultsFile(path, overwrite=True).close()
    assert written(path) == []


@pytest.mark.parametrize("missing", [1, 2, 30, 60])
def test_half_a_line_is_taken_off(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "out.jsonl"
    write(path, answer("a"), answer("b"))
    path.write_bytes(path.read_bytes()[:-missing])
    results = ResultsFile(path)
    assert list(results.finished) == (
        ["a", "b"] if missing == 1 else ["a"]
    )  # without its newline it is whole
    results.append(answer("c"))
    results.close()
    assert written(path) == [*results.finished]


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
    """Failures whose request was changed; all of them if asked for; never what was answered."""
    path = tmp_path / "out.jsonl"
    write(
        path,
        answer("good"),
        answer("failed", 400),
        answer("mended", 400, "old"),
        answer("stranger", 400),
    )
    wanted: dict[Key, str] = {
        "good": "batch_req_1",
        "failed": "batch_req_1",
        "mended": "batch_req_new",
        "more": "batch_req_1",
    }
    results = ResultsFile(path)
    results.reconcile(wanted, retry_failed=False)
    assert written(path) == list(results.finished) == ["good", "failed", "stranger"]
    results.append(answer("mended"))
    results.reconcile(wanted | {"mended": "batch_req_1"}, retry_failed=True)
    results.append(answer("failed"))
    assert written(path) == list(results.finished) == ["good", "stranger", "mended", "failed"]
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
    """Closing writes what is left once more; that must not bury what was said."""
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
