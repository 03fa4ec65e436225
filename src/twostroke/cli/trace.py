"""``twostroke trace``."""

from __future__ import annotations

import sys
from pathlib import Path


def trace(recording: Path, /, *, output: Path = Path("trace.json")) -> None:
    """Turn a recording into a Chrome trace, which https://ui.perfetto.dev opens.

    Args:
        recording: What `twostroke serve --record FILE` wrote.
        output: Where the trace goes.
    """
    from twostroke.observability.chrome_trace import write_chrome_trace
    from twostroke.observability.recorder import read_jsonl

    events = list(read_jsonl(recording))
    write_chrome_trace(events, output)
    print(
        f"{len(events)} steps written to {output}; open it at https://ui.perfetto.dev",
        file=sys.stderr,
    )
