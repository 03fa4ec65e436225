"""Gives a new model the ability to copy, before it sees any text.

Instructions and follow-ups need copying (the word to begin with, the name to give, the answer to
repeat). Text from the bank hardly teaches it, since every answer can be learned by heart. The
circuit that copies is an induction head (Olsson et al. 2022): a head of one layer marks each token
with the one before it, a head of the next finds the mark that equals the current token and copies
what it marks. Random tokens that repeat teach it too, but 90 seconds of that did not suffice; built
in by hand, 20 seconds on random tokens make it right for 97 % of them (docs/lab/training-pilot.md).
"""

import random
import time

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from training.model import ROPE_THETA, hidden_states

# Pairs of RoPE that tell neighbours apart, and those that hardly turn over a context.
FAST_PAIRS, SLOW_FROM = (
    10,
    16,
)
# Strengths: attention 8 or more nats, values like an embedding.
NEIGHBOUR, MARK, MATCH, COPY = (
    0.7,
    0.49,
    2.8,
    0.67,
)
ROWS, TOKENS, PERIODS = 8, 128, (6, 32)
PEAK_LR, WARM_UP_STEPS = 1e-3, 60
FINAL_NORM = 0.8  # Logits of embeddings as large as they begin.
FIRST_ID = 10  # Ids below are special tokens.
ENOUGH, LOG_SECONDS = 0.97, 5.0


@torch.no_grad()
def give_copying_heads(model: LlamaForCausalLM, seed: int) -> None:
    """Makes two heads that copy.

    Head 0 of layer 0 marks each token with the one before, and head 0 of layer 1 copies what
    follows a match.

    All embeddings get one coordinate in common (which adds the same to every logit, so it changes
    no probability). The first head's query and key read only that: constants that RoPE turns, by
    frequency f over the fastest pairs, so that the score is a sum of cos(f (i - j - 1)), highest at
    j = i - 1. It moves a random projection of the embedding to a second one, orthogonal to it; the
    other head compares the two in pairs that RoPE hardly turns.
    """
    embedding = model.model.embed_tokens.weight  # [vocabulary, hidden]
    hidden, head_dim = embedding.shape[1], model.config.head_dim
    embedding[:, 0] = embedding.norm(dim=1).mean()
    half = hidden // 2  # The other half is what `model.Chooser` gives meanings to.
    rank = min(head_dim, (half - 1) // 2)
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(half - 1, 2 * rank, generator=generator))[
        0
    ].T  # orthonormal rows
    # Each [head_dim, hidden].
    own_token, mark = torch.zeros(2, head_dim, hidden, device=embedding.device)
    own_token[:rank, 1:half], mark[:rank, 1:half] = basis[:rank], basis[rank:]
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    turns = head_dim // 2
    for weight in (p.weight for a in (first, second) for p in (a.q_proj, a.k_proj)):
        weight[:head_dim] = 0
    frequencies = ROPE_THETA ** (-torch.arange(FAST_PAIRS, device=embedding.device) / turns)
    first.q_proj.weight[:FAST_PAIRS, 0] = NEIGHBOUR * frequencies.cos()
    first.q_proj.weight[turns : turns + FAST_PAIRS, 0] = -NEIGHBOUR * frequencies.sin()
    first.k_proj.weight[:FAST_PAIRS, 0] = NEIGHBOUR
    first.v_proj.weight[:head_dim], first.o_proj.weight[:, :head_dim] = (
        MARK * own_token,
        MARK * mark.T,
    )
    slow = [*range(SLOW_FROM, turns), *range(turns + SLOW_FROM, head_dim)]
    second.q_proj.weight[slow], second.k_proj.weight[slow] = (
        MATCH * own_token[slow],
        MATCH * mark[slow],
    )
    second.v_proj.weight[:head_dim], second.o_proj.weight[:, :head_dim] = (
        COPY * own_token,
        COPY * own_token.T,
    )


def learn_copying(model: LlamaForCausalLM, max_steps: int, seed: int) -> float:
    """Trains attention and norms on random tokens that repeat, for so many steps at most.

    Returns the share of repetitions predicted at last. The period differs from step to step: if it
    did not, a head could copy from a fixed distance, which is of no use later.
    """
    give_copying_heads(model, seed)
    model.model.norm.weight.data.fill_(FINAL_NORM)
    trained = [p for name, p in model.named_parameters() if "self_attn" in name or "norm" in name]
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        trained, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    logged = time.perf_counter()
    step, right = 0, 0.0
    while step < max_steps and right < ENOUGH:
        optimizer.param_groups[0]["lr"] = PEAK_LR * min(1.0, (step + 1) / WARM_UP_STEPS)
        period = rng.randint(*PERIODS)
        once = torch.randint(FIRST_ID, model.config.vocab_size, (ROWS, period), generator=generator)
        ids = once.repeat(1, TOKENS // period + 1)[:, :TOKENS].to(model.device)  # [rows, tokens]
        positions = torch.arange(TOKENS, device=model.device).expand(ROWS, -1)
        with torch.autocast(model.device.type, torch.bfloat16):
            logits = model.lm_head(
                hidden_states(model, ids, positions)[1][:, period - 1 : -1]
            ).float()
        wanted = ids[:, period:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        step += 1
        right += 0.1 * ((logits.argmax(-1) == wanted).float().mean().item() - right)
        if time.perf_counter() - logged >= LOG_SECONDS:
            logged = time.perf_counter()
            print(f"copying step {step:5d}  loss {loss.item():.3f}  right {right:.0%}", flush=True)
    return right
