"""Which GGUF file of a folder, or of a repository on the Hub, is meant."""

from __future__ import annotations

import re
from pathlib import Path

from twostroke.core.errors import ModelLoadError

GGUF = ".gguf"
# ``repository:Q4_K_M``, as llama.cpp and Ollama write it.
_NAMED = re.compile(r"(.+):([A-Za-z0-9_]{2,30})")
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
_SHOWN = 8


def split_format(model: str) -> tuple[str, str | None]:
    """The folder or repository, and the format behind its colon, if there is one."""
    match = _NAMED.fullmatch(model)
    return (match[1], match[2]) if match else (model, None)


def download_patterns(format: str) -> list[str]:
    """What the files of a format are called, whole or in parts."""
    cases = dict.fromkeys((format, format.upper(), format.lower()))
    return [f"*{case}{ending}" for case in cases for ending in (GGUF, "-*-of-*.gguf")]


def holds_gguf_alone(folder: Path) -> bool:
    """Whether it is a folder of GGUF files, not one of Hugging Face's layout."""
    return not (folder / "config.json").exists() and any(folder.glob(f"*{GGUF}"))


def choose_gguf(folder: Path, format: str | None) -> Path:
    """The one model of that format, by its file or the first of its parts.

    Args:
        format: What its name ends with, such as ``Q4_K_M``, in whichever case.

    Raises:
        ModelLoadError: There is none, or there are several.
    """
    files = [path for path in sorted(folder.rglob(f"*{GGUF}")) if _is_first(path.name)]
    files = [path for path in files if not path.name.lower().startswith("mmproj")]
    wanted = [path for path in files if format is None or _has_format(path.name, format)]
    if len(wanted) == 1:
        return wanted[0]
    what = "GGUF file" if format is None else f"GGUF file in {format}"
    shown = ", ".join(path.name for path in (wanted or files)[:_SHOWN])
    raise ModelLoadError(
        f"{folder} holds {'several' if wanted else 'no'} {what}{'s' if wanted else ''}",
        hint=f"give one of them: {shown}" if files else "download the model again",
    )


def _is_first(name: str) -> bool:
    part = _PART.search(name)
    return part is None or part[1] == "00001"


def _has_format(name: str, format: str) -> bool:
    """Whether a name ends with it, apart from what comes before by a sign."""
    stem = _PART.sub("", name).removesuffix(GGUF).lower()
    return re.search(rf"(^|[-._]){re.escape(format.lower())}$", stem) is not None
