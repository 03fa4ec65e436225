"""``twostroke models``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.core.errors import ModelLoadError
from twostroke.core.flags.byte_sizes import format_decimal_bytes

if TYPE_CHECKING:
    from twostroke.models.catalogue import CheckpointSurvey, FamilyRow

COLUMNS = ("model_type", "layers", "features", "path")


def models(
    model: str | None = None,
    /,
    *,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """List what runs, by model_type; of MODEL, whether it runs here, and how.

    No weights are read, only the headers of their files.

    Example: twostroke models ./my-checkpoint

    Args:
        model: A checkpoint's folder or GGUF file, pilot, or a Hugging Face Hub id; by default all
            families.
        json_: Print JSON instead of a table.
    """
    if model is None:
        _print_families(as_json=json_)
        return 0
    from twostroke.startup import survey_checkpoint

    try:
        survey = survey_checkpoint(model)
    except ModelLoadError as error:
        if not json_:
            raise
        refusal = {"model": model, "runs": False, "reason": error.message, "hint": error.hint}
        print(json.dumps(refusal, indent=1))
        return 1
    if json_:
        print(json.dumps({"model": model, "runs": True, **asdict(survey)}, indent=1))
    else:
        _print_survey(survey)
    return 0


def cells_of(row: FamilyRow) -> tuple[str, ...]:
    """A family's line under ``COLUMNS``."""
    return row.model_type, ", ".join(row.layers), ", ".join(row.features), row.path


def _print_families(*, as_json: bool) -> None:
    from twostroke.checkpoints.quantised.read_scheme import METHODS
    from twostroke.models.catalogue import EXTRA, FORMATS, list_families, list_further_formats

    rows = list_families()
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    _print_table(COLUMNS, [cells_of(row) for row in rows])
    print(f"\nformats of all: {', '.join(FORMATS)}")
    print(f"quantised safetensors: {', '.join(METHODS)}")
    for name, families in list_further_formats(rows).items():
        print(f"{name}: {', '.join(families)}")
    print(f"most other decoders run by transformers' code, slower: {EXTRA}")


def _print_survey(survey: CheckpointSurvey) -> None:
    state, kv = survey.state_bytes, survey.kv_bytes_per_token
    rows = [
        ("model_type", survey.model_type),
        ("path", f"{survey.path}, {survey.dtype} on {survey.device}"),
        ("stored as", ", ".join(survey.stored)),
        ("parameters", f"{survey.parameters:,}"),
        ("weights", _size(survey.weight_bytes)),
        ("KV cache", f"{_size(kv)} a token" if kv else "none"),
        ("state", f"{_size(state)} a request" if state else "none"),
        ("context", f"{survey.context_length:,} tokens"),
    ]
    _print_table(("it runs", ""), rows)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, highlight=False).print(table)


def _size(count: int) -> str:
    return format_decimal_bytes(count) if count >= 1e6 else f"{count:,} bytes"
