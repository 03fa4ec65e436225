"""Protects: where the kernels cannot be compiled, the package is built without them and says so
once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hatch_build import SOURCES, KernelsHook

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PATH": ""}, "no C++ compiler found"),
        ({"CXX": "no-such-compiler -O1"}, "no-such-compiler"),
        ({"CXX": "false"}, "did not compile"),
    ],
)
def test_without_a_compiler_there_is_one_warning_and_no_library(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    says: str,
) -> None:
    shutil.copytree(ROOT / SOURCES, tmp_path / SOURCES, ignore=shutil.ignore_patterns("*.so"))
    monkeypatch.delenv("CXX", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config: Any = None
    hook = KernelsHook(str(tmp_path), {}, config, config, str(tmp_path), "wheel")
    build_data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build_data)
    assert build_data == {"artifacts": []}
    assert not list(tmp_path.rglob("*.so"))
    warnings = capsys.readouterr().err
    assert says in warnings and warnings.count("without") == 1
