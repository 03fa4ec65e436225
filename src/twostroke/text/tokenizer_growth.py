"""How much a tokenizer may add to a text: what is bounded in the text is not in its tokens.

A normalizer that puts 10 MB before each text loads in a tenth of a second, and takes 13 s and a
gigabyte for a single letter.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from twostroke.core.errors import ModelLoadError

# Published tokenizers prepend one character, replace one by one, and add three tokens.
MAX_PREPENDED = 1024  # characters
MAX_FACTOR = 64
MAX_ADDED_TOKENS = 256


def check_growth(backend: Backend, path: Path) -> None:
    """Refuse a tokenizer that makes any text long.

    Args:
        path: The path of its file, for the error.

    Raises:
        ModelLoadError: Its normalizer, its decoder or its post-processor adds too much.
    """
    for name, part in (("normalizer", backend.normalizer), ("decoder", backend.decoder)):
        prepended, factor = 0, 1.0
        for step in _steps(None if part is None else json.loads(part.__getstate__())):
            if step["type"] == "Prepend":
                prepended += len(step["prepend"])
            elif step["type"] == "Replace":
                factor *= _factor(step)
            elif step["type"] == "Precompiled":
                factor *= _longest(base64.b64decode(step["precompiled_charsmap"]))
        if prepended > MAX_PREPENDED:
            raise _refused(path, name, f"puts {prepended} characters before", MAX_PREPENDED)
        if factor > MAX_FACTOR:
            raise _refused(path, name, f"can make {factor:.3g} characters of each of", MAX_FACTOR)
    num_added = max(map(backend.num_special_tokens_to_add, (False, True)))
    if num_added > MAX_ADDED_TOKENS:
        raise _refused(path, "post_processor", f"adds {num_added} tokens to", MAX_ADDED_TOKENS)


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or decoder, those of sequences in sequences too."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for inner in part.get("normalizers") or part.get("decoders") or ():
            yield from _steps(inner)
    else:
        yield part


def _factor(step: dict[str, Any]) -> float:
    """How many characters may come of each; a regular expression may match none or one."""
    pattern = step["pattern"].get("String") or "x"
    return max(1.0, len(step["content"]) / len(pattern))


def _longest(charsmap: bytes) -> int:
    """Characters of the longest text in sentencepiece's table: a trie's length, it, the texts."""
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].decode(errors="replace")
    return max(map(len, texts.split("\0")), default=1) or 1


def _refused(path: Path, name: str, does: str, limit: int) -> ModelLoadError:
    return ModelLoadError(
        f"the {name} of {path} {does} every text, at most {limit} are accepted",
        hint=f"download the file again, or take what it adds out of its {name}",
    )
