"""Pairs of texts for models that are asked whether a document answers a query.

Such a model (Qwen3-Reranker and those trained like it) generates text. Its score is what share of
the probability of "no" and "yes", as the first token of the answer, belongs to "yes". The form of
the question is the one that the model was trained with, from its model card (Zhang et al., Qwen3
Embedding, 2025); the chat template puts the turns around it, with an empty thought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.tokenizer import Tokenizer

_TASK = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".'
)
DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# Templates without thoughts do not read it.
_VARIABLES: Mapping[str, Any] = {"add_generation_prompt": True, "enable_thinking": False}


def encode_judgement(
    encoder: ChatEncoder, query: str, document: str, instruction: str | None = None
) -> list[int]:
    """Token ids of the question whether ``document`` answers ``query``.

    Args:
        instruction: What a document is wanted for; by default the model card's.

    Raises:
        InvalidRequestError: The model has no chat template, or it takes no system message.
    """
    question = (
        f"<Instruct>: {instruction or DEFAULT_INSTRUCTION}\n<Query>: {query}\n"
        f"<Document>: {document}"
    )
    chat = [{"role": "system", "content": _TASK}, {"role": "user", "content": question}]
    return encoder.encode(chat, **_VARIABLES)


def score_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[int, int]:
    """The tokens that stand for no and yes.

    Raises:
        InvalidRequestError: A word is not one token, so that no first token of an answer is it.
    """
    encoded = tokenizer.encode_all(words)
    for word, tokens in zip(words, encoded, strict=True):
        if len(tokens) != 1:
            raise InvalidRequestError(
                f"this model cannot score: its tokenizer has {len(tokens)} tokens for {word!r}",
                hint="serve a ranking model, or name two of its tokens as classifier_from_token in"
                " config.json",
            )
    return encoded[0][0], encoded[1][0]
