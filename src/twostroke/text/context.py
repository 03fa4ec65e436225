"""Puts a chat's prompt together within a number of tokens, and reports what was left out.

In order: system prompt, documents, history, and the last user message with all that follows it. The
first and the last of these always stay. Documents without relevance are removed first. Of the
others as many as necessary are removed, in the order of the strategy; then those that still fit are
restored, the last removed first. Only if none of these is missing do documents without relevance
return. Whether a prompt fits is decided by its own tokens, never by an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from twostroke.core.errors import RequestTooLargeError
from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.chat_messages import check_messages
from twostroke.text.context_material import (
    BM25,
    ContextChoice,
    ContextMaterial,
    ContextOptions,
    ContextPiece,
    RankingTask,
)
from twostroke.text.context_report import ContextReport
from twostroke.text.documents import Document

# Tokens; a shorter beginning of a document is useless, so the document is removed altogether.
MIN_CUT_TOKENS = 16
# So many steps of the search trust the tokens counted piece by piece; further ones bisect.
MAX_GUESSES = 6


class Assembly(NamedTuple):
    """A prompt as token ids, and how it was put together."""

    token_ids: list[int]
    report: ContextReport


def assemble(
    encoder: ChatEncoder,
    messages: Sequence[Mapping[str, Any]],
    documents: Sequence[Document] = (),
    options: ContextOptions | None = None,
    *,
    hard_limit: int,
    soft_limit: int | None = None,
    **rendering: Any,
) -> Assembly:
    """The prompt of a conversation and its documents, ranked by BM25 if they are to be ranked.

    For arguments and errors see ``OpenAssembly``.
    """
    assembly = OpenAssembly(
        encoder,
        messages,
        documents,
        options or ContextOptions(),
        hard_limit=hard_limit,
        soft_limit=soft_limit,
        **rendering,
    )
    return assembly.finish()


class OpenAssembly:
    """A prompt whose parts are counted, and of which nothing has been left out yet.

    Whoever ranks documents by more than their words does so in between: ``to_rank`` says whether
    anything is to be ranked, and ``finish`` takes the scores. Every text's tokens are counted once
    by themselves, and the resulting prompt about twice.

    Args:
        messages: Messages of the OpenAI API. Those of the roles system and developer are the system
            prompt, wherever they are. A turn is a user message with all that follows it up to the
            next.
        documents: Either all of them have a score, or they are ranked by the last user message
            where a ranking is needed.
        hard_limit: The most tokens that the prompt may have.
        soft_limit: The most that it should have. Only what has to stay may exceed it; the strategy
            ``error`` ignores it.
        rendering: Further arguments of ``ChatTemplate.render``.

    Raises:
        RequestTooLargeError: What has to stay does not fit into ``hard_limit``; or, with the
            strategy ``error`` and from ``finish``, the whole does not.
        InvalidRequestError: A message is malformed, or the template refuses the conversation.
    """

    def __init__(
        self,
        encoder: ChatEncoder,
        messages: Sequence[Mapping[str, Any]],
        documents: Sequence[Document],
        options: ContextOptions,
        *,
        hard_limit: int,
        soft_limit: int | None = None,
        **rendering: Any,
    ) -> None:
        chat = check_messages(messages, more_roles=encoder.template.roles)
        self._material = ContextMaterial(encoder, chat, documents, options, rendering)
        self._minimal = self._material.prompt(ContextChoice((), ()))
        if len(self._minimal) > hard_limit:
            raise RequestTooLargeError(
                f"the system prompt and the last message need {len(self._minimal)} tokens, "
                f"but {max(hard_limit, 0)} are available for the prompt",
                needed=len(self._minimal),
                available=max(hard_limit, 0),
                param="messages",
                hint="shorten them, lower max_tokens, or raise context.max_tokens",
            )
        self._budget = hard_limit
        if options.strategy != "error" and soft_limit is not None:
            self._budget = min(hard_limit, max(soft_limit, len(self._minimal)))
        self._by_score = options.document_order == "score"
        # Found before the ranking, which is needed only if it is missing.
        self._whole = None if self._by_score else self._find_whole()

    def to_rank(self) -> RankingTask | None:
        """What is to be ranked for ``finish``; ``None`` if no ranking is needed."""
        needed = self._whole is None and not self._material.is_scored
        return self._material.ranking_task() if needed else None

    def finish(self, scores: Sequence[float] | None = None, ranker: str = BM25) -> Assembly:
        """The prompt, with as much in it as fits.

        Args:
            scores: One for each text of ``to_rank``; by default BM25's.
            ranker: What the report says of where they come from.
        """
        if scores is not None:
            self._material.take_scores(scores, ranker)
        if self._by_score:
            self._material.rank()
            self._whole = self._find_whole()
        if self._whole is not None:
            choice, prompt = self._material.everything(), self._whole
        else:
            choice, prompt = _fit(self._material, self._minimal, self._budget)
        return Assembly(prompt, self._material.report(choice, len(prompt), self._budget))

    def _find_whole(self) -> list[int] | None:
        """The prompt with everything in it; ``None`` if it does not fit.

        Raises:
            RequestTooLargeError: That, with the strategy ``error``.
        """
        material, budget = self._material, self._budget
        everything = material.everything()
        pieces = [
            *map(material.turn, everything.turns),
            *(material.document(i) for i, _ in everything.documents),
        ]
        num_wanted = len(self._minimal) + sum(piece.tokens for piece in pieces)
        if material.options.strategy == "error":
            return _whole_prompt(material, everything, num_wanted, budget)
        if num_wanted <= budget and len(prompt := material.prompt(everything)) <= budget:
            return prompt
        return None


def _fit(
    material: ContextMaterial, minimal: list[int], budget: int
) -> tuple[ContextChoice, list[int]]:
    """What stays, and the prompt, where not everything does.

    Args:
        minimal: The prompt of what has to stay.
        budget: The most tokens that the prompt may have.
    """
    relevant = material.without_irrelevant_documents()
    choice, prompt = _fit_by_order(relevant, relevant.removal_order(), minimal, budget)
    if (irrelevant := material.irrelevant_documents()) and choice == relevant.everything():
        return _fit_by_order(material, irrelevant[::-1], prompt, budget)
    return choice, prompt


def _fit_by_order(
    material: ContextMaterial, order: Sequence[ContextPiece], minimal: list[int], budget: int
) -> tuple[ContextChoice, list[int]]:
    """What stays, and the prompt, if the pieces in ``order`` may be removed, the first one first.

    Args:
        minimal: The prompt without all of them.
    """
    num_removed, prompt = _remove_fewest(material, order, minimal, budget)
    removed = list(order[:num_removed][::-1])  # the last removed first
    cuts = material.options.strategy == "truncate_documents"
    if cuts and removed and removed[0].kind == "document":
        shortened = _with_shortened(material, removed[1:], removed[0], prompt, budget)
        if shortened is not None:
            return shortened
    frame = material.estimate_frame(len(minimal))
    removed, prompt = _restore_fitting(material, removed, frame, prompt, budget)
    best = next((piece for piece in removed if cuts and piece.kind == "document"), None)
    if best is not None:
        still_removed = [piece for piece in removed if piece is not best]
        shortened = _with_shortened(material, still_removed, best, prompt, budget)
        if shortened is not None:
            return shortened
    return material.without(removed), prompt


def _whole_prompt(
    material: ContextMaterial, everything: ContextChoice, num_wanted: int, budget: int
) -> list[int]:
    """The prompt with everything in it, which must fit."""
    # One that is far too long is refused without being written out.
    prompt = material.prompt(everything) if num_wanted <= 2 * budget else None
    needed = num_wanted if prompt is None else len(prompt)
    if prompt is None or needed > budget:
        about = "about " if prompt is None else ""
        raise RequestTooLargeError(
            f"the prompt needs {about}{needed} tokens with all turns and documents, but {budget}"
            " are available",
            needed=needed,
            available=budget,
            param="messages",
            hint="send less, lower max_tokens, or choose another context.strategy",
        )
    return prompt


def _remove_fewest(
    material: ContextMaterial, order: Sequence[ContextPiece], minimal: list[int], budget: int
) -> tuple[int, list[int]]:
    """How many pieces to remove, in order, for the rest to fit; and the prompt of that rest."""
    frame = material.estimate_frame(len(minimal))
    estimates = [float(len(minimal))]
    for piece in reversed(order):
        frame_tokens = frame * material.messages_in(piece.index) if piece.kind == "turn" else 0
        estimates.append(estimates[-1] + piece.tokens + frame_tokens)
    estimates.reverse()  # estimates[k]: tokens without the first k pieces
    too_few, enough, prompt = -1, len(order), minimal
    error, tries = 0.0, 0
    while enough - too_few > 1:
        guess = next(
            (k for k, estimate in enumerate(estimates) if estimate + error <= budget), enough
        )
        if tries >= MAX_GUESSES:
            guess = (too_few + enough) // 2
        guess = min(max(guess, too_few + 1), enough - 1)
        tokens = material.prompt(material.without(order[:guess]))
        error, tries = len(tokens) - estimates[guess], tries + 1
        if len(tokens) <= budget:
            enough, prompt = guess, tokens
        else:
            too_few = guess
    return enough, prompt


def _restore_fitting(
    material: ContextMaterial,
    removed: list[ContextPiece],
    frame: float,
    prompt: list[int],
    budget: int,
) -> tuple[list[ContextPiece], list[int]]:
    """What stays removed once all that fits is restored; and the prompt of the rest.

    A turn is restored only if those between it and the kept ones are: the history gets no further
    holes.

    Args:
        removed: In the order in which they may be restored.
        frame: Tokens around each message.
        prompt: The one without them.
    """
    slack = 0
    for _ in range(MAX_GUESSES):
        room, restored, has_hole = float(budget - len(prompt) - slack), list[ContextPiece](), False
        for piece in removed:
            is_turn = piece.kind == "turn"
            tokens = piece.tokens + (frame * material.messages_in(piece.index) if is_turn else 0)
            if tokens <= room and not (is_turn and has_hole):
                restored.append(piece)
                room -= tokens
            else:
                has_hole = has_hole or is_turn
        if not restored:
            break
        still_removed = [piece for piece in removed if piece not in restored]
        longer_prompt = material.prompt(material.without(still_removed))
        if len(longer_prompt) <= budget:
            removed, prompt, slack = still_removed, longer_prompt, 0
        else:
            slack += len(longer_prompt) - budget
    return _restore_singly(material, removed, prompt, budget)


def _restore_singly(
    material: ContextMaterial, removed: list[ContextPiece], prompt: list[int], budget: int
) -> tuple[list[ContextPiece], list[int]]:
    """Try documents one by one: the estimate for several may have ruled out one that fits."""
    num_tries = 0
    for piece in list(removed):
        if piece.kind != "document" or len(prompt) + piece.tokens > budget:
            continue
        still_removed = [other for other in removed if other is not piece]
        longer_prompt = material.prompt(material.without(still_removed))
        if len(longer_prompt) <= budget:
            removed, prompt = still_removed, longer_prompt
        num_tries += 1
        if num_tries == MAX_GUESSES:
            break
    return removed, prompt


def _with_shortened(
    material: ContextMaterial,
    removed: Sequence[ContextPiece],
    cut: ContextPiece,
    prompt: list[int],
    budget: int,
) -> tuple[ContextChoice, list[int]] | None:
    """Keep as much of the beginning of ``cut`` as fits; ``None`` if that is too little.

    Args:
        prompt: The one without it.
    """
    document = material.documents[cut.index]
    whole = material.without(removed)
    room = min(cut.tokens - 1, budget - len(prompt))
    while room >= MIN_CUT_TOKENS:
        text = material.tokenizer.prefix(document.text, room).rstrip()
        if not text:
            return None
        short = replace(document, text=text)
        choice = whole._replace(
            documents=tuple((i, short if i == cut.index else d) for i, d in whole.documents)
        )
        tokens = material.prompt(choice)
        if len(tokens) <= budget:
            return choice, tokens
        room -= len(tokens) - budget
    return None
