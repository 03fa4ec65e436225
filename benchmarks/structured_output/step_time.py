"""Decode steps of guided JSON against those of free text, in turn.

    python -m benchmarks.structured_output.step_time MODEL [--out FILE]

Two engines with the same weights take a step each, one after the other: on a machine whose speed
changes from second to second, ratios within such a pair say more than rounds. MODEL is a folder
that ``benchmarks.structured_output.make_model`` wrote.

``guided`` takes one token a step, as free text does. In the others, tokens without a choice come
together with the next, so that their seconds per token count; ``form`` is all keys and three words.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment
from twostroke import EngineConfig, SamplingParams, StructuredOutputsParams, load_engine
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.llm_engine import LLMEngine

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
GUIDED = {"type": "array", "items": PERSON, "minItems": 100_000}
FORM = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            f"the answer to question number {number}": {"enum": ["yes", "no", "not known"]}
            for number in range(12)
        },
        "required": [f"the answer to question number {number}" for number in range(12)],
        "additionalProperties": False,
    },
    "minItems": 100_000,
}


@dataclass(slots=True)
class _Side:
    """One engine and the step times of its requests."""

    engine: LLMEngine
    params: SamplingParams
    seconds: list[float]
    tokens: list[int]

    def start(self, round_number: int, batch: int, prompt: list[int]) -> None:
        for number in range(batch):
            request_id = f"{round_number}-{number}"
            params = replace(self.params, seed=number)
            self.engine.submit(
                GenerationRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
            )
        self.engine.step()  # the prompts

    def step(self) -> None:
        began = time.perf_counter()
        outputs = self.engine.step()
        self.seconds.append(time.perf_counter() - began)
        for output in outputs:
            if output.error is not None:
                raise SystemExit(f"error: {output.error.message}")
        self.tokens.append(sum(len(output.token_ids) for output in outputs))

    def end(self, round_number: int, batch: int) -> None:
        for number in range(batch):
            self.engine.abort(f"{round_number}-{number}")


def main(
    model: str,
    *,
    out: Path | None = None,
    batches: tuple[int, ...] = (1, 16),
    steps: int = 60,
    rounds: int = 3,
) -> None:
    """Print the ratios, and write them to a file.

    Args:
        out: Where the record goes.
        batches: Requests at once.
        steps: Decode steps in a round.
        rounds: Of each size; the first is not counted.
    """
    others = OtherPrograms()
    free = SamplingParams(max_tokens=4000, ignore_eos=True, detokenize=True)
    forms = {
        "guided": (StructuredOutputsParams(json=GUIDED, disable_any_whitespace=True), 0),
        "guided, forced tokens together": (
            StructuredOutputsParams(json=GUIDED, disable_any_whitespace=True),
            None,
        ),
        "form": (StructuredOutputsParams(json=FORM, disable_any_whitespace=True), None),
    }
    options: dict[str, Any] = {"model": model, "kv_cache_memory": 2**30, "max_num_seqs": 32}
    options["enable_prefix_caching"] = False
    engines = [load_engine(EngineConfig.from_flat(options)) for _ in range(2)]
    rows = []
    for name, (form, speculation) in forms.items():
        params = SamplingParams(max_tokens=4000, structured_outputs=form, speculation=speculation)
        for batch in batches:
            sides = [_Side(engines[0], free, [], []), _Side(engines[1], params, [], [])]
            _measure(sides, batch, steps, rounds)
            rows.append(_row(name, batch, *sides))
            print(rows[-1], flush=True)
    where = environment(" ".join(["python -m", __spec__.name, *sys.argv[1:]]), others.share())
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"environment": where, "rows": rows}, indent=1) + "\n")


def _measure(sides: list[_Side], batch: int, steps: int, rounds: int) -> None:
    tokenizer = sides[0].engine.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode("A list of people and their answers: ")
    for number in range(rounds):
        for side in sides:
            side.start(number, batch, prompt)
        for _ in range(steps):
            for side in sides:
                side.step()
        for side in sides:
            side.end(number, batch)
            if number == 0:
                side.seconds, side.tokens = [], []


def _row(name: str, batch: int, free: _Side, guided: _Side) -> dict[str, Any]:
    pairs = [theirs / ours for ours, theirs in zip(free.seconds, guided.seconds, strict=True)]
    per_token = [sum(side.seconds) / sum(side.tokens) for side in (free, guided)]
    return {
        "what": name,
        "requests": batch,
        "free_step_ms": round(1e3 * statistics.median(free.seconds), 2),
        "step_ms": round(1e3 * statistics.median(guided.seconds), 2),
        "step_ratio": round(statistics.median(pairs), 3),
        "tokens_per_step": round(sum(guided.tokens) / len(guided.tokens) / batch, 2),
        "seconds_per_token_ratio": round(per_token[1] / per_token[0], 3),
        "pairs": len(pairs),
    }


if __name__ == "__main__":
    cyclopts.run(main)
