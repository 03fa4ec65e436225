"""From a loaded model of transformers to its ``ModelSpec``: by watching what its attention gets.

A pass over a few tokens, each attending to itself alone, shows every call of the attention
interface; the same pass with another first token shows whether anything else mixes tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.rotation import DEFAULT_LENGTH
from twostroke.model_spec.config_fields import ConfigFields, short
from twostroke.model_spec.generation_config import parse_end_tokens
from twostroke.model_spec.layer_specs import AttentionSpec, LayerSpec, LinearSpec, whole
from twostroke.model_spec.number_formats import stored_format
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.foreign.decoder import ForeignBody
from twostroke.models.foreign.interface import NO_INTERFACE, REFUSED, Attend, CallForm

TOKENS = 4
# Between two passes over the same number of tokens, as a share of the largest number.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


class _Watched(NamedTuple):
    """One pass: the calls, and every number that they and the result consist of, by token."""

    forms: list[CallForm]
    values: list[Tensor]  # [tokens, elements] each
    result: Tensor


def outline(
    body: ForeignBody, raw: Mapping[str, Any], generation: Mapping[str, Any], dtype: torch.dtype
) -> ModelSpec:
    """The description of a model, its layers one for each call of its attention.

    Raises:
        ModelLoadError: It cannot run over the paged cache.
    """
    fields = ConfigFields(raw)
    length = fields.optional("max_position_embeddings") or fields.optional("n_positions")
    device = next(body.model.parameters()).device
    tokens = torch.arange(1, TOKENS + 1, device=device)
    positions = torch.arange(TOKENS, device=device)
    usual = _watch(partial(body.hidden, tokens, positions))
    if not usual.forms:
        raise ModelLoadError(NO_INTERFACE, hint=REFUSED)
    _check_windows(usual.forms, body.model.config)
    _check_mixing(body, usual, tokens, positions, (length or DEFAULT_LENGTH) - 1)
    vocabulary = _check_head(body, usual, tokens)
    hidden, name = usual.result.shape[-1], str(raw.get("model_type"))
    layers = [LayerSpec(1, 0, _attention_of(form), branches=1) for form in usual.forms]
    runs = tuple(replace(layer, count=len(list(same))) for layer, same in groupby(layers))
    return ModelSpec(
        model_type=name,
        hidden_size=hidden,
        vocab_size=vocabulary,
        layers=runs,
        head=LinearSpec("head", whole(vocabulary), hidden, quantised=False),
        tied=False,
        other_parameters=0,
        norm_eps=1e-6,
        stated_length=length,
        default_length=DEFAULT_LENGTH,
        rope=None,
        logit_soft_cap=None,
        format=stored_format(raw),
        dtype=str(dtype).removeprefix("torch."),
        quantization="",
        eos_token_ids=parse_end_tokens(generation, raw),
    )


def _attention_of(form: CallForm) -> AttentionSpec:
    if form.heads % form.kv_heads:
        raise ModelLoadError(
            f"the model's attention has {form.heads} query heads for {form.kv_heads} of keys",
            hint=REFUSED,
        )
    return AttentionSpec(
        form.heads,
        form.kv_heads,
        form.key_dim,
        form.value_dim,
        form.window,
        soft_cap=form.soft_cap,
        scale=form.scale,
        sinks=form.sinks,
    )


def _watch(pass_: Callable[[Attend], Tensor]) -> _Watched:
    forms: list[CallForm] = []
    values: list[Tensor] = []

    def attend(
        index: int, form: CallForm, query: Tensor, key: Tensor, value: Tensor, sinks: Any
    ) -> Tensor:
        forms.append(form)
        values.extend(each.flatten(1) for each in (query, key, value))
        return value.repeat_interleave(form.heads // form.kv_heads, 1)

    with torch.inference_mode():
        result = pass_(attend)
    return _Watched(forms, [*values, result], result)


def _check_mixing(
    body: ForeignBody, usual: _Watched, tokens: Tensor, positions: Tensor, last: int
) -> None:
    """Refuse what mixes tokens beside attention, or takes positions from anywhere but the caller.

    A state, a convolution, angles that follow the longest request.
    """
    other_tokens, other_positions = tokens.clone(), positions.clone()
    other_tokens[0], other_positions[0] = tokens[0] + TOKENS, last
    changed = _watch(partial(body.hidden, other_tokens, other_positions))
    if _differ([each[1:] for each in usual.values], [each[1:] for each in changed.values]):
        raise ModelLoadError(
            "the model mixes tokens outside its attention (a state, a convolution, or angles that"
            " follow the longest request)",
            hint=REFUSED,
        )
    if not _differ(usual.values, _watch(partial(body.hidden, tokens, positions + 1)).values):
        raise ModelLoadError("the model does not read position_ids", hint=REFUSED)


def _check_head(body: ForeignBody, usual: _Watched, tokens: Tensor) -> int:
    """The size of the vocabulary, once both halves are known to make what the model makes.

    At the positions that it chooses itself, which the caller's are to be.
    """
    as_it_is = _watch(partial(body.whole_logits, tokens))
    with torch.inference_mode():
        halves = body.logits(usual.result)
    if as_it_is.result.shape != halves.shape or _differ(
        as_it_is.values, [*usual.values[:-1], halves]
    ):
        raise ModelLoadError(
            "the model's logits need more than token_ids, position_ids and hidden states",
            hint=REFUSED,
        )
    return int(halves.shape[-1])


def _check_windows(forms: Sequence[CallForm], config: Any) -> None:
    """Refuse masks that the interface is not told of, as far as the configuration shows them."""
    if getattr(config, "attention_chunk_size", None) is not None:
        raise ModelLoadError("config.json: attention_chunk_size is not supported", hint=REFUSED)
    kinds = getattr(config, "layer_types", None) or []
    for index, kind in enumerate(kinds if len(kinds) == len(forms) else []):
        is_known = kind in ("full_attention", "sliding_attention")
        if not is_known or (kind == "sliding_attention" and forms[index].window is None):
            raise ModelLoadError(
                f"config.json: layer_types says {short(kind)} of layer {index}, which its attention"
                " does not pass on",
                hint=REFUSED,
            )


def _differ(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether any pair is further apart than rounding may bring them."""
    if len(first) != len(second):
        return True
    for left, right in zip(first, second):
        tolerance = TOLERANCE.get(left.dtype, 1e-4)
        left, right = left.float(), right.float()
        if not bool(((left - right).abs() <= tolerance * (1e-6 + left.abs().max())).all()):
            return True
    return False
