"""What the layers of a model of transformers call as their attention.

transformers looks attention functions up by name
(https://huggingface.co/docs/transformers/attention_interface); ours hands queries, keys and values
to whichever attention the pass runs with. Which pass that is, each module of the model knows from
``CURRENT``, an attribute that it is given once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from twostroke.core.errors import ModelLoadError

NAME = "twostroke"
CURRENT = "twostroke_pass"
NO_INTERFACE = "the model's attention does not go through transformers' attention interface"
REFUSED = "twostroke runs only what goes through transformers' attention interface alone"
# Arguments that models hand on and that change nothing here: dropout is of training, positions are
# in the queries already, and the rest asks for other outputs.
_IGNORED_NAMES = """
cache_position cu_seq_lens_k cu_seq_lens_q dropout layer_idx max_length_k max_length_q
output_attentions output_hidden_states output_router_logits position_embeddings position_ids
return_dict use_cache
"""
IGNORED = frozenset(_IGNORED_NAMES.split())


class CallForm(NamedTuple):
    """The shape of one call, the same in every pass.

    Attributes:
        scale: What scores are multiplied by.
        window: How many of the latest tokens a token sees.
        sinks: Whether heads have scores without a value.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: bool


# Given the number of the call within the pass, its form, and query, key, value
# ``[tokens, heads, dim]`` and sinks: what each token attends to, ``[tokens, heads, value_dim]``.
Attend = Callable[[int, CallForm, Tensor, Tensor, Tensor, Tensor | None], Tensor]


class CurrentPass:
    """Which attention the layers of one model call just now."""

    def __init__(self) -> None:
        self._attend: Attend | None = None
        self._num_calls = 0

    @contextmanager
    def during(self, attend: Attend) -> Iterator[None]:
        """One pass with this attention; its calls are numbered from 0."""
        self._attend, self._num_calls = attend, 0
        try:
            yield
        finally:
            self._attend = None

    def call(self, form: CallForm, query: Tensor, key: Tensor, value: Tensor, sinks: Any) -> Tensor:
        assert self._attend is not None, "attention is called within a pass"
        self._num_calls += 1
        return self._attend(self._num_calls - 1, form, query, key, value, sinks)


def register() -> None:
    """Make the function known to transformers under ``NAME``; again is the same."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_in_pass)


def attend_in_pass(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend as the current pass does, see transformers' ``sdpa_attention_forward``.

    Args:
        query: ``[1, heads, tokens, key_dim]``; ``key`` and ``value`` have KV heads.
        s_aux: Sinks, ``[heads]``.

    Returns:
        ``[1, tokens, heads, value_dim]``.

    Raises:
        ModelLoadError: The model asks for what the cache's attention does not do.
    """
    if attention_mask is not None:
        raise ModelLoadError("the model gives its attention a mask of its own", hint=REFUSED)
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise ModelLoadError("the model's attention is not causal", hint=REFUSED)
    unknown = [name for name, it in others.items() if it is not None and name not in IGNORED]
    if unknown:
        raise ModelLoadError(f"the model gives its attention {unknown[0]}", hint=REFUSED)
    heads, key_dim, kv_heads = query.shape[1], query.shape[-1], key.shape[1]
    form = CallForm(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value.shape[-1],
        scale=key_dim**-0.5 if scaling is None else float(scaling),
        window=sliding_window or None,
        soft_cap=softcap or None,
        sinks=s_aux is not None,
    )
    current: CurrentPass = getattr(module, CURRENT)
    attended = current.call(form, _by_token(query), _by_token(key), _by_token(value), s_aux)
    return attended[None], None


def _by_token(heads: Tensor) -> Tensor:
    """``[1, heads, tokens, dim]`` to ``[tokens, heads, dim]``."""
    return heads[0].transpose(0, 1).contiguous()
