"""A page of the inspector as one HTML file that needs no network: modules, styles and data."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from posixpath import dirname, join, normpath

from twostroke.inspector.static_files import FOLDER

_IMPORT = re.compile(r'^import (?:(\w+)|\{([^}]*)\}) from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|class|function) (\w+))", re.MULTILINE)
_EXPORT_LIST = re.compile(r"\bexport ?\{([^}]*)\};?")
_EXPORT_DEFAULT = re.compile(r"\bexport default ")
_SOURCE_MAP = re.compile(r"//# sourceMappingURL=.*")
_LEFT = re.compile(r"^(?:import|export)\b.*|^ from \".*", re.MULTILINE)


def one_file(entry: str, sheets: tuple[str, ...], data: tuple[str, object]) -> str:
    """The whole file. Its policy allows this very style sheet and this script, nothing else.

    Args:
        entry: The module that draws the page, by its path below ``static``.
        sheets: Style sheets, in order.
        data: The id of an element, and the JSON value that it holds.
    """
    styles = "\n".join((FOLDER / name).read_text(encoding="utf-8").strip() for name in sheets)
    script = bundle(entry)
    policy = (
        f"default-src 'none'; style-src {_source_hash(styles)}; script-src {_source_hash(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    licences = (FOLDER / "vendor/LICENSES.txt").read_text(encoding="utf-8")
    name, value = data
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>twostroke</title>\n<style>{styles}</style></head>\n"
        '<body><div id="app"><p class="boot">This page needs JavaScript.</p></div>\n'
        f'<script type="application/json" id="{escape(name)}">{text}</script>\n'
        f'<script type="text/plain" id="licences">{licences}</script>\n'
        f'<script type="module">{script}</script></body></html>\n'
    )


def bundle(entry: str) -> str:
    """A module and all that it imports as one script, each module in a function of its own.

    Exports are values here: a module cannot see another one assign to what it imported.

    Raises:
        ValueError: Modules import each other in a circle, or in a way that is not understood.
    """
    written: dict[str, str] = {}
    _add(entry, written, ())
    script = "const modules = {};\n" + "".join(written.values())
    return script.replace("</script", "<\\/script")


def _add(name: str, written: dict[str, str], importing: tuple[str, ...]) -> None:
    """Write a module after those that it imports."""
    if name in importing:
        raise ValueError(f"{' imports '.join((*importing, name))}: a circle")
    if name in written:
        return
    text = _SOURCE_MAP.sub("", (FOLDER / name).read_text(encoding="utf-8"))

    def bind(match: re.Match[str]) -> str:
        default, names, target = match.groups()
        path = normpath(join(dirname(name), target))
        _add(path, written, (*importing, name))
        bound = [f"default: {default}"] if default else _pairs(names, is_export=False)
        return f'const {{ {", ".join(bound)} }} = modules["{path}"];'

    text = _IMPORT.sub(bind, text)
    values = _EXPORT.findall(text)
    text = _EXPORT.sub("", text)
    for names in _EXPORT_LIST.findall(text):
        values += _pairs(names, is_export=True)
    text = _EXPORT_LIST.sub("", text)
    text, num_defaults = _EXPORT_DEFAULT.subn("const default_ = ", text)
    values += ["default: default_"] * num_defaults
    if left := _LEFT.search(text):
        raise ValueError(f"{name}: cannot bundle {left[0]!r}")
    written[name] = (
        f'modules["{name}"] = (() => {{\n{text.strip()}\n'
        f"return {{ {', '.join(values)} }};\n}})();\n"
    )


def _pairs(names: str, *, is_export: bool) -> list[str]:
    """``a, b as c`` of an import as ``a``, ``b: c``; of an export as ``a``, ``c: b``."""
    pairs = [re.findall(r"[$\w]+", name.replace(" as ", " ")) for name in names.split(",")]
    return [": ".join(reversed(pair) if is_export else pair) for pair in pairs if pair]


def _source_hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
