"""Protects: lines are found whatever their length, and a file that shrinks ends nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.inspector.recorded import recording
from twostroke.core.errors import ConfigError
from twostroke.inspector import line_file
from twostroke.inspector.line_file import LineFile
from twostroke.inspector.recording import Recording


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"ab\n\ncd\nefg", b"a\nbc\n", b"long line\nx"])
def test_lines_and_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, piece: int
) -> None:
    monkeypatch.setattr(line_file, "_PIECE", piece)
    path = tmp_path / "file"
    path.write_bytes(content)
    file = LineFile(path)
    found = list(file.lines())
    lines = [line for line in content.split(b"\n") if line]
    assert [data[begin:end] for _, data, begin, end in found] == lines
    assert [file.read(place, place + end - begin) for place, _, begin, end in found] == lines
    file.close()


def test_a_file_that_is_cut_short_is_an_error_where_somebody_looks(tmp_path: Path) -> None:
    """Mapped, it would end the process with SIGBUS."""
    path = tmp_path / "steps.jsonl"
    path.write_bytes(recording().read_bytes())
    source = Recording(path)
    assert source.wait_until_read(20)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ConfigError, match="cut short"):
        source._event(source.num_steps - 1)
    assert source._event(3).step == 3
    source.close()


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        LineFile(tmp_path)
    with pytest.raises(ConfigError, match="no regular file"):
        LineFile(Path("/dev/zero"))


def test_a_closed_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x\n")
    file = LineFile(path)
    file.close()
    with pytest.raises(ConfigError, match="closed"):
        file.read(0, 1)
