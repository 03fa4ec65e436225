"""``twostroke quantize``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from twostroke.cli.terminal import print_note
from twostroke.core.errors import ConfigError
from twostroke.core.files import reason, write_text
from twostroke.core.flags.byte_sizes import format_decimal_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from twostroke.checkpoints.quantised.written import Quantised

REPORT = "quantization_report.json"
SHOWN = 5  # of the layers that lose most


def quantize(
    model: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    to: Literal["int4", "int8"] = "int4",
    lm_head: bool = False,
    compare: bool = True,
    text: Path | None = None,
) -> None:
    """Write a copy of MODEL whose linear layers are rounded to 4 or 8 bits, and say what it costs.

    The copy is a folder in the layout of compressed-tensors, which `twostroke serve` reads.
    FOLDER/quantization_report.json has the error of every layer.

    Example: twostroke quantize ./my-model --to int4 -o ./my-model-int4

    Args:
        model: A checkpoint's folder, pilot, or a Hugging Face Hub id.
        output: The folder to write; it must be empty, or not there.
        to: int4: a scale for 32 weights (W4A16). int8: a scale for an output, and activations are
            rounded to int8 while the model runs (W8A8).
        lm_head: Round the head as well, which gives the scores of tokens.
        compare: Then run both models over the same tokens, and count how many of the likeliest
            change.
        text: Compare on this text; by default on what the model itself writes.
    """
    from twostroke.checkpoints.open_checkpoint import find_checkpoint
    from twostroke.startup import quantise_checkpoint

    sample = _read_text(text) if text is not None and compare else None
    checkpoint = find_checkpoint(model)
    with _progress_bar() as (begin, advance):
        written = quantise_checkpoint(checkpoint, to, output, begin, advance, head=lm_head)
    report: dict[str, Any] = {"model": model, "to": to, **asdict(written)}
    _print_written(written, output)
    _write_report(output, report)  # it is there whatever becomes of the comparison
    if compare:
        from twostroke.cli.checkpoints.compare import compare_models
        from twostroke.model_spec.reader import read_model

        context = read_model(output).context_length
        compared = compare_models(str(checkpoint.path), str(output), sample, context, _say_progress)
        report["compared"] = asdict(compared)
        print(
            f"likeliest tokens: {compared.same:,} of {compared.tokens:,} the same"
            f" ({compared.same / max(compared.tokens, 1):.1%}),"
            f" on {'your text' if sample is not None else 'what the model writes'}\n"
            f"perplexity there: {compared.perplexity_before:.4g}, then"
            f" {compared.perplexity_after:.4g}"
        )
        _write_report(output, report)
    print(f"\ntwostroke serve {output}")


def _write_report(folder: Path, report: Mapping[str, Any]) -> None:
    try:
        write_text(folder / REPORT, json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {folder / REPORT}: {reason(error)}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read --text {path}: {why}") from error


def _print_written(written: Quantised, output: Path) -> None:
    errors = written.errors
    worst = sorted(errors, key=lambda name: errors[name], reverse=True)[:SHOWN]
    sizes = (format_decimal_bytes(size) for size in (written.bytes_before, written.bytes_after))
    print(f"{output}: {' to '.join(sizes)}, {len(errors)} linear layers rounded")
    if written.kept:
        more = f" and {len(written.kept) - 3} more" if len(written.kept) > 3 else ""
        print(f"kept as they were: {', '.join(written.kept[:3])}{more}")
    print(f"error of a layer's weights, as a share of them: median {_median(errors):.2%}; most:")
    for name in worst:
        print(f"  {errors[name]:7.2%}  {name}")


def _median(errors: Mapping[str, float]) -> float:
    import statistics

    return statistics.median(errors.values())


def _say_progress(what: str) -> None:
    if sys.stderr.isatty():
        print_note(what)


@contextmanager
def _progress_bar() -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Take the number of all bytes, and then those that are done; shown on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("rounding"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("rounding", total=None)
        yield (
            lambda total: bar.update(task, total=total),
            lambda count: bar.advance(task, count),
        )
