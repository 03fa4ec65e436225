"""A server of one MCP tool over standard input and output, for agents that run tools themselves."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """What a method gives."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "weather", "version": "1"},
            "instructions": "The weather of Swiss towns.",
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        city = params["arguments"]["city"]
        return {"content": [{"type": "text", "text": f"It rains in {city}."}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        answer = result(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
