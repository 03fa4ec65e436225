"""Protects: the benchmarks' large model computes what the small one does, bit by bit, and their
formulas and ratios are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.peers.workers.speculating import Entry, speculate
from benchmarks.speculation.break_even import break_even_of, crossing, expected_tokens
from benchmarks.speculation.entropy import Rates
from benchmarks.speculation.rounds import Round, in_turn, summarize
from benchmarks.speculation.tasks import TASKS
from benchmarks.speculation.widened import Widening, widen
from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.spec_decode.engines import answers, make_engine
from twostroke.core.sampling_params import SamplingParams

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def small_checkpoint(folder: Path) -> Path:
    raw = tiny_config(
        "llama", tie_word_embeddings=True, torch_dtype="bfloat16", head_dim=16, hidden_size=64
    )
    return write_checkpoint(folder, raw, random_tensors(raw, dtype=torch.bfloat16))


def test_the_widened_model_answers_bit_by_bit_the_same(tmp_path: Path) -> None:
    small = small_checkpoint(tmp_path / "small")
    count = widen(small, tmp_path / "large", Widening(4, 3))
    params = [
        SamplingParams(max_tokens=40, temperature=t, seed=3, detokenize=False, ignore_eos=True)
        for t in (0.0, 0.7, 1.3)
    ]
    texts = []
    for folder in (small, tmp_path / "large"):
        engine = make_engine(model=str(folder), dtype="auto", max_model_len=128)
        texts.append(answers(engine, PROMPT, params))
        assert count > 10 * 96 * 64
    assert texts[0] == texts[1]


def test_leaving_the_widened_model_early_is_not_right_by_construction(tmp_path: Path) -> None:
    """The last layer is the small model's own: without it, drafts are wrong now and then."""
    widen(small_checkpoint(tmp_path / "small"), tmp_path / "large", Widening(4, 3))
    settings = {"method": "early-exit", "exit_layer": 5, "num_speculative_tokens": 3}
    engine = make_engine(
        model=str(tmp_path / "large"),
        dtype="auto",
        max_model_len=128,
        speculative_config=settings | {"adaptive": False},
    )
    params = [SamplingParams(max_tokens=60, temperature=0, detokenize=False, ignore_eos=True)]
    answers(engine, PROMPT, params)
    shares = [share for event in engine.recorder.events(-1) for share in event.scheduled]
    drafted = sum(share.num_drafts for share in shares)
    assert drafted > sum(share.num_accepted_drafts for share in shares)


def test_heads_are_widened_with_their_model(tmp_path: Path) -> None:
    """A widened head gives a widened state what the small one gives the small state."""
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads/config.json").write_text('{"medusa_num_heads": 1, "medusa_num_layers": 1}')
    generator = torch.Generator().manual_seed(0)
    names = {"0.0.linear.weight": (8, 8), "0.0.linear.bias": (8,), "0.1.weight": (12, 8)}
    small = {name: torch.randn(shape, generator=generator) for name, shape in names.items()}
    save_file(small, tmp_path / "heads/medusa_lm_head.safetensors")
    widen(tmp_path / "heads", tmp_path / "large")
    large = load_file(tmp_path / "large/medusa_lm_head.safetensors")
    state = torch.randn(8, generator=generator)
    wide = torch.cat([state, torch.zeros(24)])

    def scores(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        inner = tensors["0.0.linear.weight"] @ x + tensors["0.0.linear.bias"]
        return tensors["0.1.weight"] @ (x + torch.nn.functional.silu(inner))

    assert torch.allclose(scores(large, wide), scores(small, state), atol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 8])
def test_only_powers_of_four_change_no_digit(width: int) -> None:
    with pytest.raises(ValueError, match="powers of four"):
        Widening(width)


def test_expected_tokens_and_break_even_are_inverse() -> None:
    for depth in (1, 4, 8):
        for rate in (0.0, 0.3, 0.9, 1.0):
            found = break_even_of(expected_tokens(rate, depth), depth)
            assert found == pytest.approx(rate, abs=1e-6)
        assert break_even_of(depth + 1.1, depth) is None, "not even if all are right"
    assert break_even_of(1.5, 1) == pytest.approx(0.5), "the rule of thumb's case"


def test_a_measured_line_crosses_where_it_reaches_1() -> None:
    assert crossing([0.0, 0.5, 1.0], [0.8, 0.9, 1.1]) == pytest.approx(0.75)
    assert crossing([0.0, 0.5], [1.0, 1.5]) == 0.0
    assert crossing([0.0, 0.5], [0.5, 0.9]) is None


def test_rates_of_acceptance_are_those_of_drawing() -> None:
    """Against what drawing from both distributions gives."""
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.6, 0.2], [0.0, 0.0, 1.0]], dtype=torch.float64)
    rates = Rates()
    rates.add(p[:1], q[:1])
    rates.add(p[1:], q[1:])
    assert rates.positions == 2 and rates.highest == pytest.approx(0.65)
    assert rates.equality == pytest.approx((0.3 + 0.8) / 2)
    assert rates.rejection == pytest.approx((0.2 + 0.3 + 0.2 + 0.8) / 2)
    generator = torch.Generator().manual_seed(0)
    draft = torch.multinomial(q[0], 20000, replacement=True, generator=generator)
    accept = torch.rand(20000, generator=generator) < (p[0] / q[0]).clamp_max(1)[draft]
    assert accept.double().mean() == pytest.approx(0.7, abs=0.02)


def test_every_task_has_different_requests_in_each_round() -> None:
    for make in TASKS.values():
        first, second = make(1, 4), make(2, 4)
        assert len(first) == 4 and first == make(1, 4) and first != second
        assert all(messages[-1]["role"] == "user" for messages in first)


def test_rounds_are_compared_within_themselves(tmp_path: Path) -> None:
    """Two engines answer the same; speculation's counts are those of the rounds."""
    settings = {"speculative_config": {"method": "ngram", "adaptive": False}}
    folder = str(small_checkpoint(tmp_path / "small"))
    params = [
        SamplingParams(max_tokens=60, temperature=0, detokenize=False, ignore_eos=True)
        for _ in range(2)
    ]
    small = make_engine(model=folder, dtype="auto", max_model_len=128)
    quoting = make_engine(model=folder, dtype="auto", max_model_len=128, **settings)
    loaded = {"none": small, "ngram": quoting}
    rounds = [in_turn(loaded, number, [PROMPT, PROMPT[:5]], params) for number in range(2)]
    one = summarize([r["ngram"] for r in rounds], [r["none"] for r in rounds])
    assert one.same_tokens and one.acceptance is not None and one.tokens_per_pass > 1
    assert len(one.speedups) == 2 and min(one.speedups) > 0
    assert rounds[0]["none"].tokens == 120 and rounds[0]["none"].drafted == 0
    slow = Round(seconds=2.0, tpots=[0.2], answers=[[1, 2]])
    fast = Round(seconds=1.0, tpots=[0.1], answers=[[1, 3]])
    both = summarize([fast], [slow])
    assert (both.speedup, both.throughput_ratio, both.same_tokens) == (2.0, 2.0, False)


class Counting:
    """A model whose next token is a function of the last two; it checks what its cache holds."""

    def __init__(self, wrong_every: int) -> None:
        self._wrong_every = wrong_every
        self.tokens: list[int] = []
        self.passes = 0

    def decode(self, entries: list[Entry]) -> list[int]:
        self.passes += 1
        wanted = []
        for token, position, sequence, is_wanted in entries:
            assert (position, sequence) == (len(self.tokens), 0), "a slot is left out or kept"
            self.tokens.append(token)
            right = (3 * token + sum(self.tokens[-2:-1]) + 1) % 50
            if is_wanted:
                wanted.append(right if position % self._wrong_every else (right + 1) % 50)
        return wanted

    def forget(self, start: int) -> None:
        del self.tokens[start:]


@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("wrong_every", [1, 2, 5, 1000])
def test_the_peers_loop_gives_the_targets_greedy_answer(most: int, wrong_every: int) -> None:
    alone, expected = Counting(1000), [7, 8, 9]
    for _ in range(40):
        expected += alone.decode([(t, i, 0, True) for i, t in enumerate(expected)])[-1:]
        alone.forget(0)
    target, draft, got = Counting(1000), Counting(wrong_every), list[int]()
    speculate(target, draft, [7, 8, 9], 40, most, got.extend)
    assert got == expected[3:]
    assert target.passes <= 40 and (wrong_every < 1000 or target.passes <= 2 + 40 // (most + 1))
