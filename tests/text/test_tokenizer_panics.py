"""The tokenizer's Rust may panic, which is no ``Exception``: it fails the load, or one text."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.server.http_calls import post
from tests.server.running import running_process
from tests.server.scripted import TEMPLATE, ScriptedEngine
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.errors import ModelLoadError, TokenizerError
from twostroke.model_spec.model_files import resolve_model
from twostroke.text.tokenizer import Tokenizer

UNREADABLE = ""
# Its table is too short for what its first entries point at: it loads, and panics on any text.
BROKEN = base64.b64encode(struct.pack("<I", 8) + b"\xff" * 8 + b"x").decode()


def tokenizer_json(charsmap: str) -> dict[str, Any]:
    normaliser = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    return {**json.loads(byte_level().to_str()), "normalizer": normaliser}


def panicking(folder: Path) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(BROKEN)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return Tokenizer.from_folder(folder)


def test_a_panic_while_loading_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(UNREADABLE)))
    with pytest.raises(ModelLoadError, match="Precompiled") as caught:
        Tokenizer.from_folder(tmp_path)
    assert caught.value.hint and "\n" not in str(caught.value)


def test_a_panic_while_encoding_is_an_error_of_the_text(tmp_path: Path) -> None:
    tokenizer = panicking(tmp_path)
    for encode in (
        lambda: tokenizer.encode("abc"),
        lambda: tokenizer.encode("abc" * 10_000),
        lambda: tokenizer.count(["abc"]),
        lambda: tokenizer.prefix("abc", 2),
        lambda: tokenizer.encode_pieces(["a", "b"]),
    ):
        with pytest.raises(TokenizerError, match="index out of bounds") as caught:
            encode()
        assert caught.value.hint


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("completions", {"prompt": "hi"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "context": {}}),
    ],
)
async def test_one_request_fails_in_the_apis_shape(
    path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    """It was answered outside of the API's shape."""
    engine = ScriptedEngine()
    good, engine._tokenizer = engine.tokenizer, panicking(tmp_path)
    response = await post(engine, path, body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (500, "server_error")
    assert error["code"] == "tokenizer_failed" and "the tokenizer failed" in error["message"]
    engine._tokenizer = good
    engine.applications.clear()  # they keep the tokenizer that they began with
    assert (await post(engine, "completions", {"prompt": "hi"})).status_code == 200


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_the_process_ends_with_a_hint(command: str, tmp_path: Path) -> None:
    """The server said that it was loading, for ever."""
    for file in resolve_model("pilot").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(UNREADABLE)))
    folder = str(tmp_path)
    arguments = {"serve": [folder, "--port", "0"], "generate": ["x", "--model", folder]}
    with running_process("-m", "twostroke", command, *arguments[command]) as server:
        assert server.end(30) == 1
    assert "hint: download the file again" in server.stderr
    assert "Traceback" not in server.stderr
