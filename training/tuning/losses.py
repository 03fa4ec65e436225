"""What tuning learns from a batch: the text, early exits, and Medusa heads.

Pilot keeps what it knows by agreeing with the weights that it began with (`base`), on the bank's
conversations. On tools there is nothing to keep: the text alone counts.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from training.data import Batch

ROW_STEP = 128  # Few shapes, see `training.model`.
# Of the predicted tokens, so many have the losses beside the text's: scores of 4096 words cost as
# much as a layer.
SAMPLED = 384


class Losses(NamedTuple):
    """Means in nats per token; `kept` is the divergence from `base`, 0 without one."""

    text: Tensor
    kept: Tensor
    exit: Tensor


class MedusaHeads(nn.Module):
    """Heads of layers `x + silu(linear(x))` in front of the model's own output matrix.

    They begin as what changes next to nothing: with weights of a standard deviation of `std`.
    """

    def __init__(self, num_heads: int, num_layers: int, hidden: int, std: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(num_layers)])
                for _ in range(num_heads)
            ]
        )
        for name, parameter in self.named_parameters():
            nn.init.normal_(parameter, std=std if name.endswith("weight") else 0.0)

    def forward(self, hidden: Tensor, head: int) -> Tensor:
        """The state of one head, shaped as `hidden` [..., hidden]."""
        layers: nn.ModuleList = self.layers[head]  # type: ignore[assignment]
        for layer in layers:
            hidden = hidden + F.silu(layer(hidden))
        return hidden


def all_states(model: LlamaForCausalLM, batch: Batch, exit_layer: int) -> tuple[Tensor, Tensor]:
    """Normed states after `exit_layer` layers and after all, [rows, length, hidden] each."""
    trunk = model.model
    hidden: Tensor = trunk.embed_tokens(batch.ids)
    rotary = trunk.rotary_emb(hidden, batch.positions)
    early = hidden
    for number, layer in enumerate(trunk.layers, start=1):
        hidden = layer(
            hidden, attention_mask=None, position_ids=batch.positions, position_embeddings=rotary
        )
        if number == exit_layer:
            early = hidden
    return trunk.norm(early), trunk.norm(hidden)


def tuning_losses(
    model: LlamaForCausalLM, batch: Batch, exit_layer: int, base: LlamaForCausalLM | None
) -> Losses:
    """The losses of a batch, where it has loss; those beside the text's on some of the tokens."""
    chosen = batch.has_loss[:, 1:]  # [rows, length - 1]
    wanted = batch.ids[:, 1:][chosen]
    some = torch.randperm(len(wanted))[:SAMPLED]
    early, last = all_states(model, batch, exit_layer)
    logits = logits_of(model, last[:, :-1][chosen])  # [predicted, vocabulary]
    text = F.cross_entropy(logits, wanted)
    kept = torch.zeros(())
    if base is not None:
        with torch.no_grad():
            _, states = all_states(base, batch, exit_layer)
            theirs = logits_of(base, states[:, :-1][chosen][some]).log_softmax(-1)
        ours = logits[some].log_softmax(-1)
        kept = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
    left = F.cross_entropy(logits_of(model, early[:, :-1][chosen][some]), wanted[some])
    return Losses(text, kept, left)


def logits_of(model: LlamaForCausalLM, states: Tensor) -> Tensor:
    """Scores [rows, vocabulary] in float32 of normed states [rows, hidden]."""
    padded: Tensor = model.lm_head(F.pad(states, (0, 0, 0, -len(states) % ROW_STEP)))
    return padded[: len(states)].float()
