"""Whatever is in the files of simulate, bench and keys: success, or one error and a hint.

Each kind of file begins as a good one, and is then spoiled: values of other types and sizes, deep
nesting, bytes cut off or put in, other encodings. More of it: see ``test_hostile_flags.py``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.hostile import outcome
from tests.model_spec.configs import LLAMA_8B
from twostroke.core.errors import ConfigError
from twostroke.gateway.keys import KeyRing, read_key_file
from twostroke.simulator.cost.efficiencies import FILES
from twostroke.simulator.cost.hardware_sheet import SHEETS

EXAMPLES = int(os.environ.get("TWOSTROKE_FUZZ_EXAMPLES", "15"))
SHORT = ("--num-requests", "3", "--max-model-len", "64")
DRAWN = ("--workload", "random", "--input-len", "8", "--output-len", "4")
TRACE = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,8,3\n0.5,9,2\n1.25,4,4\n"
MOONCAKE = "".join(
    f'{{"timestamp": {time}, "input_length": 20, "output_length": 3, "hash_ids": [1, {time}]}}\n'
    for time in (0, 1500, 2000)
)
TABLES = """{"device": "h100-sxm", "gemm": {"bf16": [[4096, 4096, [[1, 1e-5], [64, 2e-5]]]]},
 "decode": [[32, 8, 128, 1, [[128, 1e-5], [4096, 5e-5]]]],
 "prefill": [[32, 8, 128, 1, [[128, 1e-5], [4096, 5e-4]]]],
 "all_reduce": {"2": [[1024, 1e-5], [1048576, 5e-5]]}}
"""
BOM = b"\xef\xbb\xbf"
KEYS = f"# comment\nalice:{'0a' * 32}\nbob:{'1b' * 32}:revoked\n"


class Kind(NamedTuple):
    """A good file, and what reads it."""

    name: str
    text: str
    use: Callable[[str], object]


def simulating(*flags: str) -> Callable[[str], object]:
    return lambda path: outcome("simulate", *SHORT, *(flag.format(path) for flag in flags))


def read_keys(path: str) -> None:
    try:
        KeyRing(read_key_file(Path(path)))
    except ConfigError as error:
        assert error.hint


def recording(folder: Path) -> str:
    path = folder / "recorded.jsonl"
    if not path.exists():
        outcome("simulate", *SHORT, *DRAWN, "--record", str(path))
    return path.read_text()


def report(folder: Path) -> str:
    path = folder / "report.json"
    if not path.exists():
        outcome("simulate", *SHORT, *DRAWN, "--output-json", str(path))
    return path.read_text()


def kinds(folder: Path) -> dict[str, Kind]:
    trace = simulating("--workload", "trace", "--trace-path", "{}")
    bench = ("bench", "serve", "--base-url", "http://127.0.0.1:9", "--dataset-name", "trace")
    made = (
        Kind("trace.csv", TRACE, trace),
        Kind("mooncake.jsonl", MOONCAKE, trace),
        Kind("recording.jsonl", recording(folder), trace),
        Kind("bench.csv", TRACE, lambda path: outcome(*bench, "--trace-path", path)),
        Kind("report2.json", report(folder), simulating("--compare-only", "--compare", "{}")),
        Kind("mine.toml", (SHEETS / "h100-sxm.toml").read_text(), simulating(*DRAWN, "--gpu={}")),
        Kind(
            "efficiencies.toml",
            (FILES / "default.toml").read_text(),
            simulating(*DRAWN, "--efficiencies={}"),
        ),
        Kind("tables.json", TABLES, simulating(*DRAWN, "--gpu=h100-sxm", "--kernel-tables={}")),
        Kind("config.json", config(), simulating(*DRAWN, "--model={}")),
        Kind("keys.txt", KEYS, read_keys),
    )
    return {kind.name: kind for kind in made}


def config() -> str:
    return json.dumps(LLAMA_8B, indent=1)


NAMES = (
    *("trace.csv", "mooncake.jsonl", "recording.jsonl", "bench.csv", "report2.json", "mine.toml"),
    *("efficiencies.toml", "tables.json", "config.json", "keys.txt"),
)
# A number, a text, a word or a bracket, in each of the formats.
PIECE = re.compile(r'-?\d[\d.eE+-]*|"[^"\n]*"|[A-Za-z_]\w*|[\[\]{}]')
VALUES = (
    *("0", "-1", "1", "0.5", "1e400", "-1e400", "nan", "inf", "NaN", "Infinity", "null", "true"),
    *("9" * 25, "9" * 5000, "1e308", "1e-320", "-0.0", "9223372036854775808", '""', '"x"', "[]"),
    *("{}", "[[]]", '"' + "x" * 200_000 + '"', "[" * 100_000, '{"a":' * 50_000, '"\\u0000"'),
    *('"\\ud800"', "\N{SNOWMAN}", "", "1, 1", "-9" * 3, "0x7fffffff", "1_000", "[1, [2, [3]]]"),
    *("2147483647", "100000000", "1000000000000"),
)


def spoil(text: str, draw: st.DrawFn) -> bytes:
    """A file that is not quite ``text``."""
    for _ in range(draw(st.integers(1, 3))):
        pieces = list(PIECE.finditer(text)) or list(re.finditer("^", text))
        piece = pieces[draw(st.integers(0, len(pieces) - 1))]
        way = draw(st.sampled_from(("value", "value", "value", "drop", "line", "twice")))
        if way == "value":
            text = text[: piece.start()] + draw(st.sampled_from(VALUES)) + text[piece.end() :]
        elif way == "drop":
            text = text[: piece.start()] + text[piece.end() :]
        else:
            lines = text.splitlines(keepends=True) or [""]
            number = draw(st.integers(0, len(lines) - 1))
            lines[number] = lines[number] * 2 if way == "twice" else ""
            text = "".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    place = draw(st.integers(0, len(data)))
    ways: dict[str, Callable[[], bytes]] = {
        "as it is": lambda: data,
        "cut": lambda: data[:place],
        "null": lambda: data[:place] + b"\0" * 3 + data[place:],
        "not utf-8": lambda: data[:place] + b"\xff\xfe" + data[place:],
        "utf-16": lambda: text.encode("utf-16", "replace"),
        "byte order mark": lambda: BOM + data,
        "CRLF": lambda: data.replace(b"\n", b"\r\n"),
        "CR": lambda: data.replace(b"\n", b"\r"),
        "noise": lambda: draw(st.binary(max_size=60)),
    }
    return ways[draw(st.sampled_from(["as it is"] * 6 + list(ways)))]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("name", NAMES)
def test_the_good_file_is_good(folder: Path, name: str) -> None:
    kind = kinds(folder)[name]
    path = folder / name
    plain = kind.text.encode()
    # Editors leave a byte order mark, and no person writes the other three kinds.
    edited = [] if name in ("mooncake.jsonl", "recording.jsonl", "report2.json") else [BOM + plain]
    for data in (plain, plain.replace(b"\n", b"\r\n"), *edited):
        path.write_bytes(data)
        result = kind.use(str(path))
        if name != "bench.csv":  # nothing listens there
            assert result is None or result.code == 0, result  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_another_encoding_inside_a_text(folder: Path, name: str) -> None:
    """Which some decoders report in another way than other mistakes."""
    kind, path = kinds(folder)[name], folder / name
    data = kind.text.encode()
    quotes = [match.end() for match in re.finditer(rb'[":]', data)][:24]
    for place in quotes:
        path.write_bytes(data[:place] + b"\xff" + data[place:])
        kind.use(str(path))


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(data=st.data())
def test_a_spoiled_file(folder: Path, name: str, data: st.DataObject) -> None:
    kind = kinds(folder)[name]
    path = folder / name
    path.write_bytes(data.draw(st.composite(lambda draw: spoil(kind.text, draw))()))
    kind.use(str(path))
