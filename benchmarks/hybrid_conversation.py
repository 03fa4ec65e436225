"""TTFT of each turn of a conversation: a model with recurrent layers beside a dense one.

    python benchmarks/make_checkpoint.py qwen3.5-300m HYBRID
    python benchmarks/make_checkpoint.py 270m DENSE
    python -m benchmarks.hybrid_conversation HYBRID DENSE --out FILE

Both have a prefix cache and take the same turns in turn. The hybrid then answers them without one:
its tokens must be the same. Then the first question's middle is edited: how much is computed again
follows from ``--state-spacing``, and so does the memory of kept states.

Prints a JSON record on stdout and progress on stderr.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import (
    OtherPrograms,
    environment,
    environment_text,
    wrapped,
    write_record,
)
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.state_slots import StateSlots
from twostroke.startup import load_engine

app = cyclopts.App(help=__doc__)
BLOCK = 16
DEFAULT_SPACINGS = (8, 32, 128)


@dataclass(frozen=True, slots=True)
class Conversation:
    """So many turns up to so many tokens, answers included."""

    turns: int
    tokens: int
    answer: int

    def question(self, turn: int) -> list[int]:
        """The tokens of a question: the same for every model."""
        length = self.tokens // self.turns - self.answer
        return _draw(turn, length)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn took: seconds to its first token, and cached tokens of its prompt."""

    ttft: float
    prompt: int
    cached: int
    answer: tuple[int, ...]


@app.default
def compare(
    hybrid: str,
    dense: str,
    *,
    turns: int = 10,
    tokens: int = 8000,
    answer: int = 16,
    spacings: tuple[int, ...] = DEFAULT_SPACINGS,
    out: Path | None = None,
) -> None:
    """Take the conversation with both models, then the hybrid's again without cache and edited.

    Args:
        hybrid: A model with recurrent layers, as --model takes it.
        dense: One without, of about as many parameters.
        turns: Of the conversation.
        tokens: Of the whole conversation, answers included.
        answer: Tokens of each answer.
        spacings: Values of --state-spacing for the second table, beside the default.
        out: Where the record goes as .json and .md, beside stdout.
    """
    talk, others = Conversation(turns, tokens, answer), OtherPrograms()
    with closing(_engine(hybrid, tokens)) as first, closing(_engine(dense, tokens)) as second:
        both = [list[Turn](), list[Turn]()]
        for number, (one, other) in enumerate(zip(_turns(first, talk), _turns(second, talk)), 1):
            both[0].append(one)
            both[1].append(other)
            _say(f"turn {number}: hybrid {one.ttft:.3f} s, dense {other.ttft:.3f} s")
    uncached = list[Turn]()
    with closing(_engine(hybrid, tokens, enable_prefix_caching=False)) as engine:
        for number, turn in enumerate(_turns(engine, talk), 1):
            uncached.append(turn)
            _say(f"turn {number} without a cache: {turn.ttft:.3f} s")
    edits = [_edited(hybrid, talk, spacing) for spacing in (None, *spacings)]
    where = environment(
        " ".join(["python", "-m", "benchmarks.hybrid_conversation", *sys.argv[1:]]), others.share()
    )
    record = {
        "environment": where,
        "models": {"hybrid": Path(hybrid).name, "dense": Path(dense).name},
        "tokens": tokens,
        "turns": [
            {
                "prompt": one.prompt,
                "hybrid": {"ttft": round(one.ttft, 4), "cached": one.cached},
                "dense": {"ttft": round(other.ttft, 4), "cached": other.cached},
                "hybrid_without_cache": {"ttft": round(bare.ttft, 4)},
            }
            for one, other, bare in zip(*both, uncached, strict=True)
        ],
        "same_tokens_without_cache": [t.answer for t in both[0]] == [t.answer for t in uncached],
        "edited": edits,
    }
    print(json.dumps(record, indent=1))
    if out is not None:
        text = environment_text(where) + "\n" + wrapped("\n".join(_tables(record)))
        write_record(out, "A conversation with a hybrid model", text, record)


def _edited(model: str, talk: Conversation, spacing: int | None) -> dict[str, Any]:
    """The whole text is cached; then its middle is changed, and once more at the same place."""
    text = [token for turn in range(talk.turns) for token in talk.question(turn)]
    middle = len(text) // 2
    with closing(_engine(model, talk.tokens, state_spacing=spacing)) as engine:
        _ask(engine, text, talk.answer)
        states = engine.scheduler.kv.states
        assert isinstance(states, StateSlots)
        kept = states.pool.num_cached
        size = engine.executor.info
        took = [
            _ask(engine, [*text[:middle], *_draw(-1 - number, talk.tokens // talk.turns)], 2)
            for number in range(2)
        ]
        state_bytes = _state_bytes(engine)
        figures = {
            "spacing": size.state_spacing,
            "is_default": spacing is None,
            "kept_states": kept,
            "kept_bytes": kept * state_bytes,
            "kv_bytes": len(text) // BLOCK * size.block_bytes,
            "edited_prompt": took[0].prompt,
            "first_edit": {"ttft": round(took[0].ttft, 4), "cached": took[0].cached},
            "second_edit": {"ttft": round(took[1].ttft, 4), "cached": took[1].cached},
        }
    _say(f"--state-spacing {size.state_spacing}: {figures}")
    return figures


def _state_bytes(engine: LLMEngine) -> int:
    from twostroke.runtime.torch_executor import TorchExecutor

    assert isinstance(engine.executor, TorchExecutor)
    shapes = engine.executor.model.state_shapes
    return sum(shape.nbytes for layer in shapes for shape in layer)


def _turns(engine: LLMEngine, talk: Conversation) -> Iterator[Turn]:
    text = list[int]()
    for number in range(talk.turns):
        text += talk.question(number)
        turn = _ask(engine, text, talk.answer)
        text += turn.answer
        yield turn


def _ask(engine: LLMEngine, prompt: Sequence[int], max_tokens: int) -> Turn:
    """Its answer, greedy; nothing else runs."""
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False
    )
    began = time.perf_counter()
    engine.submit(
        GenerationRequest(request_id="asked", prompt_token_ids=list(prompt), params=params)
    )
    ttft, cached, answer = 0.0, 0, list[int]()
    while engine.has_work():
        for output in engine.step():
            raise_output_error(output)
            ttft = ttft or time.perf_counter() - began
            cached = output.num_cached_tokens
            answer += output.token_ids
    return Turn(ttft, len(prompt), cached, tuple(answer))


def _engine(model: str, tokens: int, **options: Any) -> LLMEngine:
    """With room for the conversation, its edits and their states; warm."""
    flat = {
        "model": model,
        "max_model_len": tokens + 64,
        "block_size": BLOCK,
        "max_num_seqs": 2,
        "kv_cache_memory": 2**30,
    }
    engine = load_engine(EngineConfig.from_flat(flat | options))
    _ask(engine, _draw(10**6, 100), 4)
    return engine


def _draw(seed: int, length: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(300, 4000) for _ in range(length)]


def _tables(record: dict[str, Any]) -> Iterator[str]:
    names = record["models"]
    same = "are the same" if record["same_tokens_without_cache"] else "DIFFER"
    yield (
        f"TTFT in seconds of each turn: `{names['hybrid']}` (recurrent layers) and"
        f" `{names['dense']}` (dense), both with a prefix cache, in turn. Tokens of the hybrid"
        f" {same} without a cache.\n"
    )
    yield "| turn | prompt | hybrid | of it cached | dense | ratio | hybrid without a cache |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for number, turn in enumerate(record["turns"], 1):
        one, other = turn["hybrid"], turn["dense"]
        yield (
            f"| {number} | {turn['prompt']} | {one['ttft']:.3f} | {one['cached']} |"
            f" {other['ttft']:.3f} | {one['ttft'] / other['ttft']:.2f} |"
            f" {turn['hybrid_without_cache']['ttft']:.3f} |"
        )
    yield "\nThe whole text is cached, then edited in its middle, twice at the same place.\n"
    yield "| `--state-spacing` | states kept | their MB | KV MB | first edit | second edit |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for row in record["edited"]:
        default = " (default)" if row["is_default"] else ""
        cells = [
            f"{row[edit]['ttft']:.3f} s, {row[edit]['cached']} cached"
            for edit in ("first_edit", "second_edit")
        ]
        yield (
            f"| {row['spacing']}{default} | {row['kept_states']} | {row['kept_bytes'] / 1e6:.0f} |"
            f" {row['kv_bytes'] / 1e6:.0f} | {cells[0]} | {cells[1]} |"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
