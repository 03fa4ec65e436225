"""The tools that Anthropic's API knows by a type alone, without a schema.

Clients run some of them, in a shell or an editor of their own, and expect their documented input:
these become functions with a schema. Those that Anthropic's servers run are not there. Source: the
pages "Bash tool", "Text editor tool" and "Memory tool" of its documentation, and the types of its
Python client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_SERVER_RUN = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool|advisor)(_.*)?")
_WITH_SCREENS = re.compile(r"(computer|browser)_.*")
_PATH = "Absolute path of a file or a folder, such as /repo/file.py."


class KnownTool(NamedTuple):
    """A tool whose input is documented.

    Attributes:
        name: Under which the model calls it.
        parameters: JSON schema of its input.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]


def known_tool(kind: str, max_characters: int | None = None) -> KnownTool | None:
    """The tool that clients run of a type such as ``bash_20250124``; ``None``: there is none.

    Args:
        max_characters: How much of a file the client's editor shows.
    """
    if kind in ("bash_20241022", "bash_20250124"):
        return _bash()
    if kind in ("text_editor_20241022", "text_editor_20250124"):
        return _editor("str_replace_editor", "new_str", ("undo_edit",), None)
    if kind in ("text_editor_20250429", "text_editor_20250728"):
        return _editor("str_replace_based_edit_tool", "insert_text", (), max_characters)
    return _memory() if kind == "memory_20250818" else None


def is_server_run(kind: str) -> bool:
    """Whether a tool's type is one of those that Anthropic's servers run."""
    return _SERVER_RUN.fullmatch(kind) is not None


def why_refused(kind: str) -> tuple[str, str]:
    """Why a tool of a type that is none of the above is refused, and what to do about it."""
    if _WITH_SCREENS.fullmatch(kind):
        return "it answers with images, and this server takes text only", "leave it out"
    if kind == "mcp_toolset":
        return "this server calls no MCP servers", "list their tools as tools of your own"
    return (
        f"there is no tool of the type {kind[:100]!a} here",
        "describe it as a tool of your own, with an input_schema",
    )


def _object(required: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*names], "description": "What to do."}


def _bash() -> KnownTool:
    parameters = _object(
        ["command"],
        command=_text("The command line; it may be empty to restart the shell."),
        restart={"type": "boolean", "description": "Start a new shell instead of a command."},
    )
    description = (
        "Run a command line in a shell and get its output. Folder, variables and background"
        " processes stay until it is restarted. Commands that wait for input cannot go on."
    )
    return KnownTool("bash", description, parameters)


_VIEW = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "For view: first and last line, counted from 1; -1 is the end.",
}
_OLD = _text("For str_replace: the text to replace. It must occur once, white space included.")
_LINE = {"type": "integer", "description": "For insert: after which line; 0 is the beginning."}


def _editor(
    name: str, inserted: str, more_commands: Sequence[str], max_characters: int | None
) -> KnownTool:
    """The text editor.

    Args:
        inserted: The property that holds what ``insert`` inserts.
    """
    texts = {
        "old_str": _OLD,
        "new_str": _text("For str_replace: the text instead; by default none."),
        "insert_text": _text("For insert: the text."),
    }
    if inserted == "new_str":
        del texts["insert_text"]
        texts["new_str"] = _text("For str_replace: the text instead. For insert: the text.")
    parameters = _object(
        ["command", "path"],
        command=_commands("view", "create", "str_replace", "insert", *more_commands),
        path=_text(_PATH),
        file_text=_text("For create: what the file holds."),
        view_range=_VIEW,
        insert_line=_LINE,
        **texts,
    )
    description = (
        "Look at files and folders and edit files: view shows a file with the numbers of its lines,"
        " or what is in a folder; create writes a new file; str_replace replaces a text that occurs"
        " once; insert adds lines."
    )
    if more_commands:
        description += " undo_edit takes back the last edit of a file."
    if max_characters is not None:
        description += f" Of a file, view shows {max_characters} characters at most."
    return KnownTool(name, description, parameters)


def _memory() -> KnownTool:
    parameters = _object(
        ["command"],
        command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
        path=_text("A file or folder below /memories; for rename, give old_path and new_path."),
        file_text=_text("For create: what the file holds."),
        old_str=_OLD,
        new_str=_text("For str_replace: the text instead."),
        insert_line=_LINE,
        insert_text=_text("For insert: the text."),
        old_path=_text("For rename: the path as it is."),
        new_path=_text("For rename: the path as it is to be."),
        view_range=_VIEW,
    )
    description = (
        "Files below /memories, which outlive this conversation. View the folder /memories before"
        " you begin, to see what is known from earlier ones. Write down what later ones need, since"
        " this one may be cut off at any time, and keep the files few and in order."
    )
    return KnownTool("memory", description, parameters)
