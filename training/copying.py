"""Teaches a new model to copy, before it sees any text.

Instructions and follow-ups need copying (the word to begin with, the name to give, the answer to repeat). Text from
the bank never teaches it, since every answer can be learned by heart. The circuit that copies is an induction head
(Olsson et al. 2022): one head marks each token with the one before it, a later head looks for the mark. Random tokens
that repeat can be predicted in no other way, and the first of the two heads is given at the start, because waiting for
it takes most of the time: with it, AdamW copies two tokens of three after 70 seconds, without it none.
"""

import random
import time

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from training.model import ROPE_THETA, hidden_states

ROWS, TOKENS = 8, 128
FIRST_PERIOD, PERIODS = 16, (8, 16, 24, 32, 48)
PEAK_LR, WARM_UP_STEPS = 3e-3, 60
FIRST_ID = 10  # Ids below are special tokens.
LOG_SECONDS = 10.0


@torch.no_grad()
def give_previous_token_head(model: LlamaForCausalLM, pairs: int = 10, strength: float = 0.7) -> None:
    """Makes head 0 of layer 0 attend to the token before.

    All embeddings get one coordinate in common (which adds the same to every logit, so it changes no probability), and
    head 0's query and key read only that: constants that RoPE turns, by frequency f over `pairs` frequencies, so that
    the score is a sum of cos(f (i - j - 1)), highest at j = i - 1.
    """
    embedding = model.model.embed_tokens.weight  # [vocabulary, hidden]
    embedding[:, 0] = embedding.norm(dim=1).mean()
    attention = model.model.layers[0].self_attn
    half = attention.head_dim // 2
    frequencies = ROPE_THETA ** (-torch.arange(pairs, device=embedding.device) / half)
    for projection in (attention.q_proj.weight, attention.k_proj.weight):  # [heads * head_dim, hidden]
        projection[:pairs] = 0
        projection[half : half + pairs] = 0
    attention.q_proj.weight[:pairs, 0] = strength * frequencies.cos()
    attention.q_proj.weight[half : half + pairs, 0] = -strength * frequencies.sin()
    attention.k_proj.weight[:pairs, 0] = strength


def learn_copying(model: LlamaForCausalLM, seconds: float, seed: int) -> float:
    """Trains on random tokens that repeat for some seconds; returns the share of repeated tokens predicted at last."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    begun = logged = time.perf_counter()
    step, right = 0, 0.0
    while time.perf_counter() - begun < seconds:
        optimizer.param_groups[0]["lr"] = PEAK_LR * min(1.0, (step + 1) / WARM_UP_STEPS)
        period = FIRST_PERIOD if right < 0.6 else rng.choice(PERIODS)  # Mixed from the start, nothing is learned.
        once = torch.randint(FIRST_ID, model.config.vocab_size, (ROWS, period), generator=generator)
        ids = once.repeat(1, TOKENS // period + 1)[:, :TOKENS].to(model.device)  # [rows, tokens]
        positions = torch.arange(TOKENS, device=model.device).expand(ROWS, -1)
        with torch.autocast(model.device.type, torch.bfloat16):
            logits = model.lm_head(hidden_states(model, ids, positions)[:, period - 1 : -1]).float()
        wanted = ids[:, period:]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        right += 0.1 * ((logits.argmax(-1) == wanted).float().mean().item() - right)
        if time.perf_counter() - logged >= LOG_SECONDS:
            logged = time.perf_counter()
            print(f"copying step {step:5d}  loss {loss.item():.3f}  right {right:.0%}", flush=True)
    return right
