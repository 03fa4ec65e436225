"""Tools that ``chat --tools demo`` offers: arithmetic of inference, in plain Python.

``training/`` teaches ``pilot`` to call them, so their names and parameters are part of its training
data. What a model writes is checked as anything else from outside: names, never paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twostroke.core.errors import TwostrokeError
from twostroke.core.flags.byte_sizes import format_decimal_bytes
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.cost.hardware_sheet import load_hardware

MAX_TOKENS = 10_000_000
PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "model": {"type": "string", "description": "a public model, such as llama-3.1-8b"},
    "gpu": {"type": "string", "description": "a device, such as h100"},
    "tokens": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


def kv_cache_size(model: str, tokens: int) -> str:
    """KV cache that one request of this many tokens needs."""
    return format_decimal_bytes(find_model(model).kv_bytes(tokens))


def decode_speed(model: str, gpu: str) -> str:
    """Most tokens per second of one request: bandwidth over the bytes of all active weights."""
    spec = find_model(model)
    # The usual rule counts the embedding, of which a token reads one row, with the rest.
    embedding = 0 if spec.tied else spec.vocab_size * spec.hidden_size
    read = spec.weight_bytes() * (spec.active_parameters + embedding) / spec.num_parameters
    return f"{load_hardware(gpu).memory_bandwidth / read:.0f} tokens/s"


def fits_on(model: str, gpu: str) -> str:
    """Whether the weights of a model fit into a device's memory."""
    weight_bytes, memory = find_model(model).weight_bytes(), load_hardware(gpu).memory_bytes
    sizes = f"{weight_bytes / 1e9:.0f} of {memory / 1e9:.0f} GB"
    return f"{'yes' if weight_bytes < memory else 'no'}, {sizes}"


class DemoTool(NamedTuple):
    """One tool; ``parameters`` are names of ``PROPERTIES``, all required."""

    run: Callable[..., str]
    parameters: tuple[str, ...]


DEMO_TOOLS: Mapping[str, DemoTool] = {
    "kv_cache_size": DemoTool(kv_cache_size, ("model", "tokens")),
    "decode_speed": DemoTool(decode_speed, ("model", "gpu")),
    "fits_on": DemoTool(fits_on, ("model", "gpu")),
}


def demo_tool_schemas() -> list[dict[str, Any]]:
    """The tools as OpenAI's API takes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": tool.run.__doc__,
                "parameters": {
                    "type": "object",
                    "properties": {key: dict(PROPERTIES[key]) for key in tool.parameters},
                    "required": list(tool.parameters),
                    "additionalProperties": False,
                },
            },
        }
        for name, tool in DEMO_TOOLS.items()
    ]


def run_tool(name: str, arguments: str) -> str:
    """The result of one call, or ``error: ...`` for the model to read; it never raises.

    Args:
        arguments: JSON text, as the model wrote it.
    """
    tool = DEMO_TOOLS.get(name)
    if tool is None:
        return f"error: there is no tool {name[:64]}; there are {', '.join(DEMO_TOOLS)}"
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return "error: the arguments are no JSON"
    if (problem := _problem(values, tool.parameters)) is not None:
        return f"error: {problem}"
    try:
        return tool.run(**values)
    except TwostrokeError as error:
        return f"error: {error.message}"


def _problem(values: object, parameters: tuple[str, ...]) -> str | None:
    """What is wrong with the arguments of a call."""
    if not isinstance(values, dict) or set(values) != set(parameters):
        return f"the arguments must be {' and '.join(parameters)}"
    for name, value in values.items():
        if name == "tokens":
            if type(value) is not int or not 1 <= value <= MAX_TOKENS:
                return f"tokens must be a whole number from 1 to {MAX_TOKENS:,}"
        elif not isinstance(value, str) or not _NAME.fullmatch(value):
            return f"{name} must be a name: {PROPERTIES[name]['description']}"
        elif value.endswith((".toml", ".json")):
            return f"{name} must be a name, not a file"
    return None
