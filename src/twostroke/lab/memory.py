"""Claims on the KV cache: how large it is, and how many requests its room holds."""

from __future__ import annotations

import random

import numpy as np

from twostroke.lab.claim import (
    Bars,
    Computed,
    Fact,
    FieldClaim,
    Observed,
    Verdict,
    VerdictName,
    judge_all,
)
from twostroke.lab.devices import Placed
from twostroke.lab.live import LiveBench, greedy, random_prompt, take_step
from twostroke.lab.numbers import shown_times
from twostroke.model_spec.public_models import find_model, public_names
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

FP16 = 2
LONG = 32768
CLAIMED_ROOM = (2.0, 4.0)
EXAMPLE = "llama-3.1-70b"
SHOWN = ("llama-2-7b", "llama-3.1-70b", "gpt-oss-120b", "qwen3-next-80b-a3b", "deepseek-v3")
# What a server without paging reserved for each request.
RESERVED = 2048
CHATS = SimulatedWorkloadOptions(workload="sharegpt-like", num_requests=1000)
SERVER = Placed("llama-2-7b", "a100-40gb-sxm")


def by_formula(model: ModelSpec) -> int:
    """Bytes of a token: 2 x layers x KV heads x head dim x 2 bytes; 0 without heads."""
    attention = next((layer.attention for layer in model.layers if layer.attention), None)
    if attention is None:
        return 0
    return 2 * model.num_layers * attention.kv_heads * attention.key_dim * FP16


def without_heads(model: ModelSpec) -> int:
    """The formula where the text has lost the number of heads."""
    return 2 * model.num_layers * model.head_dim * FP16


def with_all_heads(model: ModelSpec) -> int:
    """The formula with query heads, as texts from before grouped-query attention have it."""
    attention = next(layer.attention for layer in model.layers if layer.attention)
    return 2 * model.num_layers * attention.heads * attention.key_dim * FP16


def is_right(model: ModelSpec) -> bool:
    """Whether the formula says what the model caches for each of ``LONG`` tokens."""
    return abs(by_formula(model) / cached_by(model) - 1) < 1e-9


def cached_by(model: ModelSpec) -> float:
    """Bytes that a model caches for each of ``LONG`` tokens; states of recurrent layers apart."""
    return (model.kv_bytes(LONG, "bf16") - model.state_bytes()) / LONG


def _formula() -> Computed:
    specs = {name: find_model(name) for name in public_names()}
    specs = {name: spec for name, spec in specs.items() if spec.kv_bytes_per_token("bf16")}
    right = [name for name, spec in specs.items() if is_right(spec)]
    model, deepseek = specs[EXAMPLE], specs["deepseek-v3"]
    exact = model.kv_bytes_per_token("bf16")
    over = by_formula(deepseek) / deepseek.kv_bytes_per_token("bf16")
    attention = next(layer.attention for layer in model.layers if layer.attention)
    bars = []
    for name in SHOWN:
        bars.append((f"{name}: formula", by_formula(specs[name]) / 1e3))
        bars.append((f"{name}: cached", cached_by(specs[name]) / 1e3))
    verdict: VerdictName = "holds" if len(right) == len(specs) else "holds with a condition"
    if EXAMPLE not in right:
        verdict = "wrong as stated"
    return Computed(
        on=f"{len(specs)} public models",
        facts=(
            Fact(
                EXAMPLE,
                f"2 x {model.num_layers} layers x {attention.kv_heads} KV heads x"
                f" {attention.key_dim} x {FP16} bytes = {by_formula(model):,} a token;"
                f" the model caches {exact:,.0f}",
            ),
            Fact(
                "without the heads",
                f"{without_heads(model):,}: {attention.kv_heads} times too little",
            ),
            Fact(
                "with all query heads",
                f"{with_all_heads(model):,}:"
                f" {attention.heads // attention.kv_heads} times too much",
            ),
            Fact(f"right at {LONG:,} tokens for", f"{len(right)} of {len(specs)} models"),
            Fact("deepseek-v3 (latent attention)", f"{shown_times(over)} too much"),
        ),
        verdict=Verdict(
            verdict,
            f"Right where all layers cache all tokens, head by head: {len(right)} of {len(specs)}"
            " models here. Texts that leave out the head count are off by the number of KV heads;"
            " those that count query heads, by the heads that share one. Windows, recurrent layers"
            " and latent attention keep less.",
        ),
        plot=Bars(values=bars, title="KB for each token"),
        figures={
            "formula": by_formula(model),
            "cached": exact,
            "right": len(right),
            "models": len(specs),
            "latent": over,
        },
    )


def _observe_formula(bench: LiveBench) -> Observed:
    spec = find_model(bench.model)
    with bench.engine(kv_cache_dtype="bfloat16", kv_cache_memory=2**26) as engine:
        info = engine.info
        per_token, tokens = info.kv_bytes_per_token, info.num_blocks * info.block_size
    expected = by_formula(spec)
    return Observed(
        facts=(
            Fact("the engine keeps", f"{per_token:,} bytes a token; the formula says {expected:,}"),
            Fact(
                "64 MiB of cache hold",
                f"{tokens:,} tokens; 64 MiB over the formula is"
                f" {2**26 // expected if expected else 0:,}",
            ),
        ),
        text="To the byte." if per_token == expected else "This model's layers cache otherwise.",
        figures={"per_token": per_token, "formula": expected, "tokens": tokens},
    )


def room_of_reservations(
    capacity: int, lengths: list[tuple[int, int]], longest: int
) -> dict[str, float]:
    """Requests at once that fit if each reserves its room when it starts.

    Requests stay as long as their answers are, so each counts by its answer.

    Args:
        capacity: Tokens that the cache holds.
        lengths: Prompt and answer tokens of each.
        longest: What a request may have at most.
    """
    weights = np.array([answer for _, answer in lengths], dtype=np.float64)
    final = np.array([prompt + answer for prompt, answer in lengths], dtype=np.float64)
    powers = np.minimum(2.0 ** np.ceil(np.log2(final)), longest)
    kinds = {
        "longest": np.full(len(final), float(longest)),
        "power": powers,
        "final": final,
    }
    return {
        name: float(capacity / np.average(kind, weights=weights)) for name, kind in kinds.items()
    }


def _paging() -> Computed:
    run = SERVER.run(CHATS, max_num_seqs=1024, max_num_batched_tokens=2048)
    info, columns = run.deployment.info, run.columns
    capacity = info.num_blocks * info.block_size
    full = columns.waiting > 0
    paged = float(np.average(columns.running[full], weights=columns.duration[full]))
    specs = list(make_workload(CHATS).workload.arrivals())
    lengths = [(spec.prompt_tokens, spec.output_tokens) for spec in specs]
    room = room_of_reservations(capacity, lengths, RESERVED)
    ratios = {name: paged / count for name, count in room.items()}
    names = {
        "longest": f"{RESERVED:,} tokens each",
        "power": "the next power of two",
        "final": "the final length",
    }
    return Computed(
        on=f"{SERVER.describe()}, {len(specs):,} chats with lengths as in ShareGPT",
        facts=(
            Fact("the cache holds", f"{capacity:,} tokens"),
            Fact("paged, blocks of 16", f"{paged:.0f} requests at once"),
            *(
                Fact(
                    f"reserving {text}",
                    f"{room[key]:.0f} requests: paging fits {shown_times(ratios[key])} as many",
                )
                for key, text in names.items()
            ),
        ),
        verdict=Verdict(
            judge_all(list(ratios.values()), *CLAIMED_ROOM),
            f"It depends on what a server reserved before: {shown_times(ratios['longest'])} as"
            f" many against the longest request, {shown_times(ratios['power'])} against powers of"
            f" two, and {shown_times(ratios['final'])} against a server that knows each answer's"
            " length, which none does. The longer the allowed request and the shorter the usual"
            " one, the more.",
        ),
        plot=Bars(
            values=[("paged", paged), *((names[key], room[key]) for key in names)],
            title="requests at once",
        ),
        figures={"paged": paged, "capacity": capacity, **ratios},
    )


def _observe_paging(bench: LiveBench) -> Observed:
    tokens, longest, requests = 4096, 512, 48
    rng = random.Random(0)
    per_token = round(find_model(bench.model).kv_bytes_per_token("bf16"))
    with bench.engine(
        kv_cache_dtype="bfloat16",
        kv_cache_memory=tokens * per_token,
        max_num_seqs=64,
        max_model_len=longest,
    ) as engine:
        room = engine.info.num_blocks * engine.info.block_size // longest
        for number in range(requests):
            prompt = random_prompt(rng, engine, rng.randint(16, 64))
            engine.submit(greedy(f"{number}", prompt, rng.randint(16, 64)))
        most = 0
        while engine.has_work():
            take_step(engine)
            most = max(most, len(engine.scheduler.running))
    return Observed(
        facts=(
            Fact("a cache of", f"{tokens:,} tokens, requests of at most {longest}, usually 80"),
            Fact("reserving the longest", f"{room} at once"),
            Fact("paged", f"{most} at once: {shown_times(most / room)} as many"),
        ),
        text="Blocks are taken as tokens come, so short requests leave room to others.",
        figures={"reserved": room, "paged": most},
    )


CLAIMS = (
    FieldClaim(
        name="kv-arithmetic",
        text="The KV cache of a token is 2 x layers x KV heads x head dim x bytes.",
        source="every text on serving; some leave out the heads, some count the query heads",
        compute=_formula,
        observe=_observe_formula,
    ),
    FieldClaim(
        name="paging",
        text="Paging the KV cache fits 2 to 4 times as many requests.",
        source="Kwon et al., PagedAttention (SOSP 2023): 2-4x the throughput of earlier servers",
        compute=_paging,
        observe=_observe_paging,
    ),
)
