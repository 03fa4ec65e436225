"""What an adapter must show when it is loaded: that it does what merged weights would do."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from twostroke.core.errors import ModelLoadError
from twostroke.layers.low_rank import Additions, LowRank
from twostroke.models.decoder import Decoder
from twostroke.runtime.adapters.adapted_pass import AdaptedPass
from twostroke.runtime.adapters.load import Pairs, read_pair
from twostroke.runtime.adapters.places import AdapterPlace, AdapterPlaces
from twostroke.runtime.reference import naive_logits

# Of the largest output that is compared.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_NUM_INPUTS, _NUM_OUTPUTS, _NUM_TOKENS = 4, 64, 8


@torch.inference_mode()
def check_merged(
    matched: Mapping[str, tuple[AdapterPlace, Pairs]],
    additions: Mapping[str, LowRank],
    model: Decoder,
) -> None:
    """Compare each layer's sums with those of merged weights ``W + scale * B A``, in a sample.

    Rounded base weights are left out: then the additions alone are compared.

    Raises:
        ModelLoadError: They differ by more than ``TOLERANCE``.
    """
    generator = torch.Generator().manual_seed(0)
    for name, (place, pairs) in matched.items():
        x = torch.randn(_NUM_INPUTS, place.inputs, generator=generator)
        x = x.to(model.device, model.dtype)
        chosen = torch.randperm(place.outputs, generator=generator)[:_NUM_OUTPUTS]
        weight = _dense(place, pairs, chosen).to(model.device)  # [chosen, in]
        chosen = chosen.to(model.device)
        base = torch.zeros(_NUM_INPUTS, place.outputs, dtype=model.dtype, device=model.device)
        bias = torch.zeros(1, device=model.device)
        if place.linear.is_exact:
            base = place.linear(x)
            bias = place.linear(torch.zeros_like(x[:1]))[0, chosen].float()
            weight += place.linear.weight_rows(chosen).float()
        adapted = additions[name].onto(x, base)[:, chosen].float()
        merged = x.float() @ weight.T + bias
        error = float((adapted - merged).abs().max() / merged.abs().max().clamp(min=1e-9))
        if not error <= TOLERANCE[model.dtype]:
            raise ModelLoadError(
                f"the adapter differs from merged weights by {error:.1%} in {', '.join(pairs)}",
                hint="its values may be too large for this --dtype; try --dtype float32",
            )


@torch.inference_mode()
def check_changes(additions: Additions, places: AdapterPlaces, model: Decoder) -> None:
    """Raises ModelLoadError if some tokens' logits are what they are without the adapter."""
    vocab = model.spec.vocab_size
    tokens = [(1 + 7919 * index) % vocab for index in range(_NUM_TOKENS)]
    owners = torch.zeros(_NUM_TOKENS, dtype=torch.int64, device=model.device)
    adapted = AdaptedPass(model, places.additions, [additions], owners)
    changed = naive_logits(adapted, tokens)
    if not bool(changed.isfinite().all()):
        raise ModelLoadError(
            "the adapter makes the model's logits infinite or NaN",
            hint="it is broken, or it needs --dtype bfloat16 or float32",
        )
    if torch.equal(changed, naive_logits(model, tokens)):
        raise ModelLoadError(
            "the adapter changes nothing: the model's logits are the same with it",
            hint="it may be untrained (B is zero at first), or its changes vanish in this --dtype",
        )


def _dense(place: AdapterPlace, pairs: Pairs, chosen: Tensor) -> Tensor:
    """Rows ``chosen`` of ``scale * B A``, float32, module by module as they are stored."""
    rows = torch.zeros(len(chosen), place.inputs)
    stored = chosen if place.order is None else place.order[chosen]
    for name, pair in pairs.items():
        part, (down, up) = place.parts[name], read_pair(pair)
        inside = (stored >= part.first) & (stored < part.first + part.size)
        rows[inside] = pair.scale * (up[stored[inside] - part.first] @ down)
    return rows
