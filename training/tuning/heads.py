"""Trains pilot's Medusa heads, on weights that stay as they are.

    python -m training.tuning.heads

Pilot reads its training questions and answers once, and the heads learn from the states that it had
at each token: 100,000 of them, many times. The folder has the format in which such heads are
published (docs/reference/speculation.md). They share pilot's output matrix, since one with a matrix
of its own takes 2.2 MB; so they need several layers, for one alone can hardly take away from a
state what says the next token.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from training.bank import Bank
from training.conversations import Conversation, ConversationBuilder, Message
from training.data import Encoder, collate
from training.evaluate import weights_digest
from training.export import WEIGHTS_DIR
from training.model import hidden_states
from training.tokenizer import load_tokenizer
from training.tuning.losses import MedusaHeads, logits_of
from training.tuning.tool_calls import ToolConversations
from training.tuning.tune import learning_rate, load_copied_bank, load_weights, read_record

NUM_HEADS, NUM_LAYERS = 4, 5
PHRASINGS = 3  # Of each question of the bank.
TOOL_CONVERSATIONS = 400  # If the weights were taught tools.
STEPS, PEAK_LR, TOKENS, READ_AT_ONCE = 1500, 4e-3, 512, 16
LAYER_STD, HEAD_WEIGHT = 0.02, 0.8  # Further heads count less.
NOTHING = -100
HEADS_DIR = WEIGHTS_DIR / "pilot-medusa"
LOG_SECONDS = 20.0


class States(NamedTuple):
    """What pilot knew at each token of its answers, and what came.

    Attributes:
        hidden: `[tokens, hidden]`, normed, in bfloat16.
        targets: `[tokens, heads]`: what each head should guess, NOTHING behind an answer's end.
    """

    hidden: Tensor
    targets: Tensor


def conversations_of(bank: Bank, seed: int, *, has_tools: bool) -> list[Conversation]:
    """Every item of the bank in some phrasings, and conversations with tools."""
    builder, rng = ConversationBuilder(bank), random.Random(f"heads/{seed}")
    made = [
        Conversation((builder.ask(item, rng), Message("assistant", item.answer)))
        for item in bank.items
        for _ in range(PHRASINGS)
    ]
    tools = ToolConversations(builder)
    return made + [tools.build(rng, 1.0) for _ in range(TOOL_CONVERSATIONS if has_tools else 0)]


@torch.no_grad()
def read_states(
    model: LlamaForCausalLM, encoder: Encoder, conversations: Sequence[Conversation]
) -> States:
    """The states at each token that is followed by one of the assistant's."""
    rng = random.Random(0)
    examples = [encoder.example(conversation, rng) for conversation in conversations]
    examples.sort(key=lambda example: len(example.ids))
    hidden, targets = [], []
    for first in range(0, len(examples), READ_AT_ONCE):
        several = examples[first : first + READ_AT_ONCE]
        batch = collate([replace(e, positions=list(range(len(e.ids)))) for e in several])
        with torch.autocast("cpu", torch.bfloat16):
            _, last = hidden_states(model, batch.ids, batch.positions)
        chosen = batch.has_loss[:, 1:]  # [rows, length - 1]
        ahead = torch.full((*chosen.shape, NUM_HEADS), NOTHING)
        for head in range(NUM_HEADS):  # at state t, token t + 1 is drawn and t + 2 + head guessed
            wanted, count = batch.ids[:, 2 + head :], chosen.shape[1] - 1 - head
            is_there = batch.has_loss[:, 2 + head :]
            ahead[:, :count, head] = torch.where(is_there, wanted, NOTHING)
        hidden.append(last[:, :-1][chosen].bfloat16())
        targets.append(ahead[chosen])
    return States(torch.cat(hidden), torch.cat(targets))


def heads_loss(
    model: LlamaForCausalLM, heads: MedusaHeads, states: States
) -> tuple[Tensor, list[float]]:
    """Weighted mean of the heads' cross-entropies in nats, and how often each is right."""
    total, weights, right = torch.zeros(()), 0.0, list[float]()
    for head in range(NUM_HEADS):
        wanted = states.targets[:, head]
        logits = logits_of(model, heads(states.hidden, head))
        loss = F.cross_entropy(logits, wanted, ignore_index=NOTHING)
        total = total + HEAD_WEIGHT**head * loss
        weights += HEAD_WEIGHT**head
        known = wanted != NOTHING
        right.append((logits.argmax(-1) == wanted)[known].float().mean().item())
    return total / weights, right


def train(
    base: Path, steps: int, seed: int, minutes: float = math.inf
) -> tuple[MedusaHeads, dict[str, object]]:
    """Heads for the weights in `base`, and the facts of the run."""
    begun = time.perf_counter()
    model = load_weights(base).eval().requires_grad_(False)
    made = conversations_of(load_copied_bank(), seed, has_tools="tuned" in read_record(base))
    states = read_states(model, Encoder(load_tokenizer(base)), made)
    torch.manual_seed(seed)
    heads = MedusaHeads(NUM_HEADS, NUM_LAYERS, model.config.hidden_size, LAYER_STD)
    optimizer = torch.optim.AdamW(
        heads.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01
    )
    logged, done, fraction = 0.0, 0, 0.0
    while fraction < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(fraction, PEAK_LR)
        some = torch.randint(len(states.hidden), (TOKENS,))
        part = States(states.hidden[some].float(), states.targets[some])
        with torch.autocast("cpu", torch.bfloat16):
            loss, right = heads_loss(model, heads, part)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        seconds = time.perf_counter() - begun
        fraction = max(done / steps, seconds / 60 / minutes)
        if seconds - logged >= LOG_SECONDS or fraction >= 1:
            logged = seconds
            shares = " ".join(f"{share:.2f}" for share in right)
            left = seconds / 60 * (1 / fraction - 1)
            print(
                f"step {done:5d} of {len(states.hidden)} states  loss {loss.item():.3f}"
                f"  right {shares}  eta {left:.1f} min",
                flush=True,
            )
    return heads, {
        "model": base.name,
        "model_sha256": weights_digest(base),
        "minutes": round((time.perf_counter() - begun) / 60, 1),
        "steps": done,
        "states": len(states.hidden),
        "torch": torch.__version__,
    }


def write(heads: MedusaHeads, record: dict[str, object], target: Path) -> int:
    """Writes the folder of the heads in bfloat16; returns its size in bytes."""
    target.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, tensor in heads.layers.named_parameters():  # {head}.{layer}.weight
        head, layer, kind = name.split(".")
        tensors[f"{head}.{layer}.linear.{kind}"] = tensor.detach().to(torch.bfloat16)
    weights = target / "medusa_lm_head.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    config = {
        "medusa_num_heads": NUM_HEADS,
        "medusa_num_layers": NUM_LAYERS,
        "base_model_name_or_path": record["model"],
    }
    for file, content in (("config.json", config), ("training.json", record)):
        (target / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return sum(path.stat().st_size for path in target.iterdir())


def main() -> None:
    """Trains and writes the heads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=WEIGHTS_DIR / "pilot", help="whose heads")
    parser.add_argument("--target", type=Path, default=HEADS_DIR, help="where they go")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="at most; the schedule becomes shorter"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    heads, record = train(args.base, args.steps, args.seed, args.minutes)
    print(f"{args.target}: {write(heads, record, args.target) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
