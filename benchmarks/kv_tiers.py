"""What swap and the disk tier are worth: overload, a restart, and more conversations than fit.

    python benchmarks/make_checkpoint.py 350m OUT
    python -m benchmarks.kv_tiers overload OUT --rounds 3
    python -m benchmarks.kv_tiers restart OUT --rounds 3
    python -m benchmarks.kv_tiers conversations pilot

Prints a JSON record on stdout and progress on stderr; ``--out FILE`` keeps the record.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts

from benchmarks.environment import OtherPrograms, environment
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.startup import load_engine

app = cyclopts.App(help=__doc__)
BLOCK = 16
MODES = ("recompute", "swap", "auto")


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that come all at once: so many, each with so many tokens."""

    requests: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        return self.requests * (self.prompt + self.output)


@app.command
def overload(model: str, *, rounds: int = 3, scale: int = 1, out: Path | None = None) -> None:
    """Chats, and long prompts, of twice the tokens that the KV cache holds, by --preemption.

    Args:
        model: As --model takes it.
        rounds: How often; the three ways in turn in each.
        scale: Divides the number of requests, for a short look.
        out: Where the record goes, beside stdout.
    """
    loads = {
        "chats": Load(48 // scale, 150, 250),
        "long prompts": Load(11 // scale, 1400, 300),
    }
    figures: dict[str, Any] = {}
    with _recording(out, "overload") as record:
        for name, load in loads.items():
            seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
            cpu_seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
            counts: dict[str, Any] = {}
            answers: set[int] = set()
            for number in range(rounds):
                for mode in MODES:
                    with _engine(model, load.tokens // 2, preemption=mode) as engine:
                        _warm_up(engine)
                        cpu = time.process_time()
                        took, answer = _run_all(engine, load, number)
                        cpu_seconds[mode].append(round(time.process_time() - cpu, 3))
                        seconds[mode].append(took)
                        answers.add(hash((number, answer)))
                        moved = engine.scheduler.tiers.stats()
                        counts[mode] = {
                            "preemptions": engine.scheduler.batch.num_preemptions,
                            "swapped_out": 0 if moved is None else moved.swapped_out,
                            "swapped_in": 0 if moved is None else moved.swapped_in,
                        }
                    _say(f"{name}, {mode}: {took:.2f} s {counts[mode]}")
            figures[name] = {
                "tokens": load.tokens,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "counts": counts,
                "ratios": _ratios(seconds),
                "ratios_of_cpu_seconds": _ratios(cpu_seconds),
                "same_answers": len(answers) == rounds,
            }
        record.update(model=Path(model).name, figures=figures)


def _ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of medians. CPU seconds are less disturbed by what else the machine does."""
    medians = {mode: statistics.median(times) for mode, times in seconds.items()}
    best = min(medians["recompute"], medians["swap"])
    return {
        "auto_over_better": round(medians["auto"] / best, 3),
        "swap_over_recompute": round(medians["swap"] / medians["recompute"], 3),
    }


@app.command
def restart(model: str, *, rounds: int = 3, tokens: int = 6000, out: Path | None = None) -> None:
    """TTFT of a conversation that comes back after a restart, with and without --kv-disk.

    Args:
        model: As --model takes it.
        rounds: How often, in turn.
        tokens: Of the conversation.
        out: Where the record goes, beside stdout.
    """
    warm, cold = list[float](), list[float]()
    same = True
    with _recording(out, "restart") as record:
        for number in range(rounds):
            prompt = _prompt(random.Random(number), tokens)
            following = [*prompt, *_prompt(random.Random(-1 - number), 50)]
            with tempfile.TemporaryDirectory() as folder:
                options = {"kv_disk": folder, "max_num_batched_tokens": 2048}
                with _engine(model, 8192, **options) as engine:
                    _first_token(engine, prompt)
                    while engine.has_work():
                        engine.step()
                with _engine(model, 8192, **options) as engine:
                    _warm_up(engine)
                    seconds, token = _first_token(engine, following)
                    warm.append(seconds)
                with _engine(model, 8192, max_num_batched_tokens=2048) as engine:
                    _warm_up(engine)
                    seconds, expected = _first_token(engine, following)
                    cold.append(seconds)
            same = same and token == expected
            _say(f"round {number + 1}: {warm[-1]:.3f} s from disk, {cold[-1]:.3f} s computed")
        ratios = [a / b for a, b in zip(warm, cold, strict=True)]
        figures = {
            "ttft_from_disk": warm,
            "ttft_computed": cold,
            "ratio": round(statistics.median(ratios), 3),
            "same_first_token": same,
        }
        record.update(model=Path(model).name, tokens=tokens, figures=figures)


@app.command
def conversations(
    model: str,
    *,
    count: int = 200,
    turns: int = 3,
    at_once: int = 8,
    out: Path | None = None,
) -> None:
    """Turns of many conversations that do not fit into memory, with and without --kv-disk.

    Args:
        model: As --model takes it.
        count: Conversations; each adds 300 tokens a turn and gets 30 back.
        turns: Of each; all take their first one, then all their second one.
        at_once: Requests that are under way.
        out: Where the record goes, beside stdout.
    """
    total = count * turns * 330
    figures: dict[str, Any] = {}
    with _recording(out, "conversations") as record, tempfile.TemporaryDirectory() as folder:
        for name, options in (("without", {}), ("with", {"kv_disk": folder})):
            with _engine(model, total // 10, **options) as engine:
                _warm_up(engine)
                began = time.perf_counter()
                ttfts = _converse(engine, count, turns, at_once)
                seconds = time.perf_counter() - began
                moved = engine.scheduler.tiers.stats()
                figures[name] = {
                    "seconds": round(seconds, 2),
                    "requests_per_second": round(count * turns / seconds, 2),
                    "median_ttft_by_turn": [round(statistics.median(t), 4) for t in ttfts],
                    "blocks_loaded": {} if moved is None else moved.loaded_blocks,
                }
            _say(f"{name} the disk: {figures[name]}")
        record.update(
            model=Path(model).name, conversations=count, turns=turns, tokens=total, figures=figures
        )


def _converse(engine: LLMEngine, count: int, turns: int, at_once: int) -> list[list[float]]:
    """TTFT of each turn; a few conversations at a time."""
    texts = [_prompt(random.Random(number), 300) for number in range(count)]
    ttfts: list[list[float]] = [[] for _ in range(turns)]
    for turn in range(turns):
        waiting, began = list(range(count)), dict[str, float]()
        while waiting or engine.has_work():
            while waiting and len(began) < at_once:
                number = waiting.pop(0)
                name = f"{turn}-{number}"
                began[name] = time.perf_counter()
                engine.submit(_request(name, texts[number], 30))
            for output in engine.step():
                raise_output_error(output)
                number = int(output.request_id.partition("-")[2])
                if len(texts[number]) == _length(turn):
                    ttfts[turn].append(time.perf_counter() - began[output.request_id])
                texts[number] += output.token_ids
                if output.finish_reason is not None:
                    del began[output.request_id]
        for number in range(count):
            texts[number] += _prompt(random.Random(1000 * turn + number), 300)
    return ttfts


def _length(turn: int) -> int:
    """Tokens of a conversation before its answer in a turn."""
    return 300 + turn * 330


def _run_all(engine: LLMEngine, load: Load, seed: int) -> tuple[float, tuple[int, ...]]:
    """Seconds for all requests together, and what they answered."""
    rng = random.Random(seed)
    for number in range(load.requests):
        engine.submit(_request(str(number), _prompt(rng, load.prompt), load.output))
    answers: dict[str, list[int]] = {}
    began = time.perf_counter()
    while engine.has_work():
        for output in engine.step():
            raise_output_error(output)
            answers.setdefault(output.request_id, []).extend(output.token_ids)
    seconds = time.perf_counter() - began
    return seconds, tuple(token for name in sorted(answers) for token in answers[name])


def _first_token(engine: LLMEngine, prompt: list[int]) -> tuple[float, int]:
    began = time.perf_counter()
    engine.submit(_request("first", prompt, 1))
    while True:
        for output in engine.step():
            raise_output_error(output)
            if output.token_ids:
                return time.perf_counter() - began, output.token_ids[0]


def _warm_up(engine: LLMEngine) -> None:
    """The first passes allocate; they are not what is measured."""
    for number, length in enumerate((600, 64)):
        engine.submit(_request(f"warm {number}", [7 + number] * length, 4, salt="warm-up"))
        while engine.has_work():
            engine.step()


def _request(name: str, prompt: list[int], max_tokens: int, salt: str = "") -> GenerationRequest:
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False
    )
    return GenerationRequest(
        request_id=name, prompt_token_ids=list(prompt), params=params, cache_salt=salt
    )


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(20, 4000) for _ in range(length)]


@contextmanager
def _engine(model: str, kv_tokens: int, **options: Any) -> Iterator[LLMEngine]:
    """An engine whose KV cache holds so many tokens."""
    config = EngineConfig.from_flat({"model": model, "device": "cpu", "kv_cache_memory": 2**29})
    with closing(load_engine(config)) as probe:
        token_bytes = probe.info.kv_bytes_per_token
        longest = min(probe.info.max_model_len, kv_tokens // BLOCK * BLOCK)
    fields: Mapping[str, Any] = {
        "model": model,
        "device": "cpu",
        "block_size": BLOCK,
        "max_model_len": longest,
        "kv_cache_memory": (kv_tokens // BLOCK) * BLOCK * token_bytes,
        **options,
    }
    with closing(load_engine(EngineConfig.from_flat(fields))) as engine:
        yield engine


@contextmanager
def _recording(out: Path | None, name: str) -> Iterator[dict[str, Any]]:
    """A record that says where it was made, printed at the end."""
    others = OtherPrograms()
    record: dict[str, Any] = {"benchmark": f"kv_tiers {name}"}
    yield record
    command = "python -m benchmarks.kv_tiers " + " ".join(sys.argv[1:])
    record["environment"] = environment(command, others.share())
    text = json.dumps(record, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    app(arguments)


if __name__ == "__main__":
    main()
