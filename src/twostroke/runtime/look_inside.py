"""``python -m twostroke.runtime.look_inside``: what the embedded model does with a short text.

It computes by the reference path, in a process of its own: the engine feels nothing. Question and
answer: ``questions/inside_text.py``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.core.errors import InvalidRequestError
from twostroke.layers.attention.reference import ReferenceAttention
from twostroke.models.decoder import Decoder
from twostroke.models.support import read_runnable
from twostroke.questions.answering import answer_lines
from twostroke.questions.inside_text import (
    LIKELIEST,
    MAX_TOKENS,
    MODEL,
    WHOLE,
    AskedText,
    InsideText,
    LikelyToken,
    ReadToken,
    SeenLayer,
)
from twostroke.runtime.weights import load_model
from twostroke.text.tokenizer import Tokenizer


class WatchedAttention:
    """The reference's attention, which keeps its weights.

    They are what it gives for values that are rows of the identity: so they come from the code that
    attends, and from no copy of it.

    Attributes:
        weights: By layer, ``[heads, queries, keys]``.
    """

    kernel_cache = None

    def __init__(self, model: Decoder) -> None:
        specs = [layer.attention for layer in model.spec.each_layer()]
        self._attention = ReferenceAttention(model.spec.sliding_windows, None, specs)
        self.weights: list[Tensor] = []

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        assert key is not None, "a layer of the embedded model has keys of its own"
        tokens, kv_heads = key.shape[:2]
        rows = torch.eye(tokens)[:, None].expand(tokens, kv_heads, tokens)
        weights = self._attention(layer, query.float(), key.float(), rows, sinks)
        self.weights.append(weights.transpose(0, 1))
        return self._attention(layer, query, key, value, sinks)


@torch.inference_mode()
def look_inside(model: Decoder, token_ids: list[int], tokenizer: Tokenizer) -> InsideText:
    """What the model does while it reads tokens."""
    tokens = torch.tensor(token_ids)
    positions = torch.arange(len(token_ids))
    attention = WatchedAttention(model)
    model.forward(tokens, positions, attention)
    below = torch.tril_indices(len(token_ids), len(token_ids))
    layers = []
    for index, weights in enumerate(attention.weights):
        part = model.first_layers(index + 1)
        hidden = part.forward(tokens, positions, WatchedAttention(model))
        shares = (WHOLE * weights[:, below[0], below[1]]).round().int()
        likeliest = _likeliest(model.logits(hidden[-1:])[0], tokenizer)
        layers.append(SeenLayer(shares.tolist(), likeliest))
    return InsideText(
        MODEL,
        [ReadToken(token, _text(token, tokenizer)) for token in token_ids],
        [round(value, 4) for value in model.embed(tokens)[-1].tolist()],
        layers,
    )


def _likeliest(logits: Tensor, tokenizer: Tokenizer) -> list[LikelyToken]:
    best = logits.topk(LIKELIEST)
    shares = torch.softmax(logits, dim=-1)[best.indices]
    return [
        LikelyToken(_text(token, tokenizer), round(logit, 3), round(share, 5))
        for token, logit, share in zip(
            best.indices.tolist(), best.values.tolist(), shares.tolist(), strict=True
        )
    ]


def _text(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")


class EmbeddedModel:
    """The embedded model, loaded when the first text comes."""

    @functools.cached_property
    def _model(self) -> Decoder:
        checkpoint = find_checkpoint(MODEL)
        device = torch.device("cpu")
        return load_model(checkpoint, read_runnable(checkpoint), "auto", device, MAX_TOKENS)

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return find_checkpoint(MODEL).tokenizer()

    def answer(self, asked: AskedText) -> InsideText:
        """Look at what is asked for.

        Raises:
            InvalidRequestError: There are too many tokens, or such as the model does not have.
            ModelLoadError: This installation has no embedded model.
        """
        tokens = asked.tokens or self._tokenizer.encode(asked.text)
        if len(tokens) > MAX_TOKENS:
            raise InvalidRequestError(
                f"text: it has {len(tokens)} tokens, and at most {MAX_TOKENS} are looked at"
            )
        if max(tokens) >= self._model.spec.vocab_size:
            raise InvalidRequestError(f"tokens: {max(tokens)} is none of {MODEL}'s tokens")
        return look_inside(self._model, tokens, self._tokenizer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer_lines(AskedText, EmbeddedModel().answer)
