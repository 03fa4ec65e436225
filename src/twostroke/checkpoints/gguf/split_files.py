"""A model in one GGUF file, or in several that llama.cpp's ``gguf-split`` made of it."""

from __future__ import annotations

import re
from pathlib import Path

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.file import GgufFile, read_gguf
from twostroke.core.errors import ModelLoadError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS = 9999


def read_gguf_parts(path: Path) -> list[GgufFile]:
    """The file and, where it is one part of several, all of them in order; the first has the
    metadata.

    Raises:
        ModelLoadError: One is missing or broken, or they do not belong together.
    """
    match = _PART.fullmatch(path.name)
    whole = read_gguf(path)
    count = whole.metadata.get("split.count", 1)
    if count in (0, 1):
        return [whole]
    if match is None or count != int(match[3]) or not 1 < int(match[3]) <= MAX_PARTS:
        raise ModelLoadError(
            f"{path} is one of {count} parts (split.count), which its name does not say",
            hint="name the parts as gguf-split does: NAME-00001-of-00003.gguf",
        )
    names = [f"{match[1]}-{index:05d}-of-{match[3]}.gguf" for index in range(1, int(match[3]) + 1)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise ModelLoadError(
            f"{path.parent} lacks {len(missing)} of {len(names)} parts: {', '.join(missing[:3])}",
            hint="the download is incomplete; run it again",
        )
    parts = [whole if name == path.name else read_gguf(path.parent / name) for name in names]
    for index, part in enumerate(parts):
        stated = part.metadata.get("split.no"), part.metadata.get("split.count")
        if stated != (index, count):
            raise ModelLoadError(
                f"{part.path} says that it is part {stated[0]} of {stated[1]} (split.no,"
                " split.count), which its name does not",
                hint="the parts belong to several models; download them again",
            )
    return parts


def join_tensors(parts: list[GgufFile]) -> dict[str, StoredTensor]:
    """The tensors of all parts. Raises ModelLoadError."""
    tensors: dict[str, StoredTensor] = {}
    for part in parts:
        twice = next((name for name in part.tensors if name in tensors), None)
        if twice is not None:
            raise ModelLoadError(
                f"{part.path} and a part before it both have {twice}",
                hint="the parts belong to several models; download them again",
            )
        tensors |= part.tensors
    stated = parts[0].metadata.get("split.tensors.count", len(tensors))
    if stated != len(tensors):
        raise ModelLoadError(
            f"{parts[0].path} speaks of {stated} tensors (split.tensors.count), its parts have"
            f" {len(tensors)}",
            hint="the parts belong to several models; download them again",
        )
    return tensors
