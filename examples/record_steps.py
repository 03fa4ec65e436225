"""Run a few requests, print each step, and write a trace for https://ui.perfetto.dev.

``python examples/record_steps.py --trace steps.json``
"""

from __future__ import annotations

import argparse
from pathlib import Path

from twostroke import LLM, SamplingParams
from twostroke.observability.chrome_trace import write_chrome_trace
from twostroke.observability.events import StepEvent


def describe(event: StepEvent) -> str:
    """One line per step: which tokens of which requests ran, what was held back and why."""
    ran = [
        f"{item.request_id}[{item.start}:{item.start + item.num_tokens}]"
        for item in event.scheduled
    ]
    held = [f"{item.request_id or 'queue'}: {item.reason.value}" for item in event.held_back]
    blocks = event.total_blocks - event.free_blocks
    return (
        f"{event.step:>4} {1000 * event.duration:>8.2f} {event.num_tokens:>6} {blocks:>6}  "
        f"{' '.join(ran)}{'  (' + ', '.join(held) + ')' if held else ''}"
    )


def main(model: str, max_tokens: int, trace: Path) -> None:
    prompts = [
        "Prefill reads the whole prompt at once. " * 4,
        "Decode writes one token per pass.",
        "Hello",
    ]
    # A small budget, so that the long prompt comes in chunks and the others run beside it.
    with LLM(model, max_num_batched_tokens=24, max_num_seqs=2) as llm:
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
        events = llm.engine.recorder.events()
    print("step       ms tokens blocks  requests and positions")
    for event in events:
        print(describe(event))
    write_chrome_trace(events, trace)
    print(f"\n{len(events)} steps written to {trace}; open it at https://ui.perfetto.dev")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="pilot", help="pilot, a checkpoint folder or a Hugging Face Hub id"
    )
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--trace", type=Path, default=Path("steps.json"))
    options = parser.parse_args()
    main(options.model, options.max_tokens, options.trace)
