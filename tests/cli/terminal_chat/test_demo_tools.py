"""Protects: what the demo tools compute, and that whatever a model writes gets an answer."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.cli.terminal_chat.demo_tools import DEMO_TOOLS, demo_tool_schemas, run_tool


def run(name: str, **arguments: object) -> str:
    return run_tool(name, json.dumps(arguments))


def test_results_are_those_of_the_formulas() -> None:
    """Llama 3.1 8B: 32 layers, 8 KV heads of 128, 2 bytes, keys and values."""
    kv_bytes = 2 * 32 * 8 * 128 * 2 * 4096
    assert run("kv_cache_size", model="llama-3.1-8b", tokens=4096) == f"{kv_bytes / 1e6:.1f} MB"
    speed = 3.35e12 / (2 * 8.03e9)
    assert run("decode_speed", model="llama-3.1-8b", gpu="h100") == f"{speed:.0f} tokens/s"
    assert run("fits_on", model="llama-3.1-8b", gpu="h100") == "yes, 16 of 86 GB"
    assert run("fits_on", model="llama-3.1-70b", gpu="h100") == "no, 141 of 86 GB"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("delete", "{}", "there is no tool delete; there are kv_cache_size"),
        ("fits_on", "{", "no JSON"),
        ("fits_on", "[" * 100_000, "no JSON"),
        ("fits_on", '["llama-3.1-8b", "h100"]', "must be model and gpu"),
        ("fits_on", '{"model": "llama-3.1-8b"}', "must be model and gpu"),
        ("fits_on", '{"model": "llama-9", "gpu": "h100"}', "unknown model"),
        ("fits_on", '{"model": "llama-3.1-8b", "gpu": "h9"}', "unknown device"),
        ("fits_on", '{"model": "/etc/passwd", "gpu": "h100"}', "must be a name"),
        ("fits_on", '{"model": "llama-3.1-8b", "gpu": "own.toml"}', "not a file"),
        ("fits_on", '{"model": 3, "gpu": "h100"}', "must be a name"),
        ("kv_cache_size", '{"model": "llama-3.1-8b", "tokens": 0}', "a whole number from 1"),
        ("kv_cache_size", '{"model": "llama-3.1-8b", "tokens": true}', "a whole number from 1"),
    ],
)
def test_what_is_wrong_is_said_to_the_model(name: str, arguments: str, says: str) -> None:
    result = run_tool(name, arguments)
    assert result.startswith("error: ") and says in result


@given(st.sampled_from([*DEMO_TOOLS, "other"]), st.text() | st.from_type(object).map(repr))
def test_no_call_raises(name: str, arguments: str) -> None:
    assert run_tool(name, arguments)


def test_schemas_accept_what_the_tools_take() -> None:
    for tool in demo_tool_schemas():
        schema = tool["function"]["parameters"]
        jsonschema.Draft202012Validator.check_schema(schema)
        values = {"model": "llama-3.1-8b", "gpu": "h100", "tokens": 10}
        arguments = {name: values[name] for name in schema["required"]}
        jsonschema.validate(arguments, schema)
        assert not run(tool["function"]["name"], **arguments).startswith("error")
