"""A server on a tiny model that embeds, whose makers had prompts put before texts or had not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.openai.ranking.test_decoder_ranking import server, write

PROMPTS = {"query": "find: ", "document": "", "classification": "sort: "}
CONTEXT = 40


@contextmanager
def vector_server(folder: Path, *, prompts: bool) -> Iterator[str]:
    write(folder)
    if prompts:
        text = json.dumps({"prompts": PROMPTS})
        (folder / "config_sentence_transformers.json").write_text(text)
    with server(folder, convert="embed", max_model_len=CONTEXT) as url:
        yield url


def embeddings(url: str, texts: list[str], **fields: Any) -> list[Any]:
    """The same texts by ``/v1/embeddings``, within what other company in a step changes."""
    body = {"input": texts, "encoding_format": "float", **fields}
    answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=30).json()
    return [pytest.approx(item["embedding"], abs=1e-5) for item in answer["data"]]
