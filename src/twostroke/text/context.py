"""Puts a chat's prompt together within a number of tokens, and says what was kept, cut and left
out.

In order: system prompt, documents, history, and the last user message with whatever follows it. The
first and the last of these always stay. Of the others as many as must go do, in the order that the
strategy names; then whatever of them still fits comes back, the last to go first. Whether a prompt
fits is decided by its own tokens, never by an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from twostroke.core.errors import RequestTooLargeError
from twostroke.text.chat_messages import check_messages
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.context_report import ContextReport, DocumentUse, Strategy
from twostroke.text.documents import (
    Document,
    bm25_scores,
    render_with_documents,
    without_special_tokens,
)
from twostroke.text.tokenizer import Tokenizer

DocumentOrder = Literal["given", "score"]

# A shorter beginning of a document tells the model nothing; the document goes altogether.
SHORTEST_CUT = 16
# So many steps of the search trust the tokens counted piece by piece; any further ones halve what
# is left.
MAX_GUESSES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """How a prompt is made to fit.

    Attributes:
        strategy: What goes first. ``drop_oldest``: turns from the oldest on, then documents from
            the lowest score up. ``drop_middle``: turns from the middle outwards, then documents.
            ``drop_documents``: documents, then the oldest turns. ``truncate_documents``: the same,
            but the last document to go is shortened if that will do. ``error``: nothing; what does
            not fit is refused.
        document_order: Documents come as they were given, or best first.
    """

    strategy: Strategy = "drop_oldest"
    document_order: DocumentOrder = "given"


class Assembly(NamedTuple):
    """A prompt as token ids, and how it came about."""

    token_ids: list[int]
    report: ContextReport


def assemble(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    documents: Sequence[Document] = (),
    options: ContextOptions | None = None,
    *,
    most: int,
    usual: int | None = None,
    **rendering: Any,
) -> Assembly:
    """The prompt of a conversation and its documents.

    Every text's tokens are counted once by themselves, and the prompt that results about twice, to
    be sure.

    Args:
        messages: As in the OpenAI API. Those of the roles system and developer are the system
            prompt, wherever they are; a turn is a user message with all that follows it up to the
            next.
        documents: Either all of them have a score, or BM25 ranks them by the last user message
            where need be.
        most: Most tokens that the prompt may have.
        usual: Most that it should have. What has to stay may go beyond; the strategy ``error``
            knows ``most`` alone.
        rendering: Further arguments of ``ChatTemplate.render``.

    Raises:
        RequestTooLargeError: What has to stay does not fit into ``most``; or something else, with
            ``error``.
        InvalidRequestError: A message is malformed, or the template refuses the conversation.
    """
    options = options or ContextOptions()
    material = _Material(
        template, tokenizer, check_messages(messages), documents, options, rendering
    )
    least = material.prompt(_Choice((), ()))
    if len(least) > most:
        raise RequestTooLargeError(
            f"the system prompt and the last message need {len(least)} tokens, "
            f"but {max(most, 0)} are available for the prompt",
            needed=len(least),
            available=max(most, 0),
            param="messages",
            hint="shorten them, lower max_tokens, or raise context.max_tokens",
        )
    budget = (
        most if options.strategy == "error" or usual is None else min(most, max(usual, len(least)))
    )
    choice, prompt = _fit(material, least, budget)
    return Assembly(prompt, material.report(choice, len(prompt), budget))


@dataclass(frozen=True, slots=True)
class _Piece:
    """What stays or goes as a whole."""

    kind: Literal["turn", "document"]
    index: int
    tokens: int


class _Choice(NamedTuple):
    """The turns and documents in a prompt; a document may be a shortened one."""

    turns: tuple[int, ...]
    documents: tuple[tuple[int, Document], ...]


class _Material:
    """A conversation and its documents, counted, and the prompts that can be made of them."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        chat: list[dict[str, Any]],
        documents: Sequence[Document],
        options: ContextOptions,
        rendering: Mapping[str, Any],
    ) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.documents = without_special_tokens(documents, tokenizer.special_texts)
        self._template = template
        self._rendering = rendering
        self._chat = chat
        roles = [message["role"] for message in chat]
        self._last = max(
            (i for i, role in enumerate(roles) if role == "user"), default=len(chat) - 1
        )
        self._system, self._turns = _turns(roles[: self._last])
        self._counts = tokenizer.count([message["content"] for message in chat])
        self._document_counts = tokenizer.count([document.written() for document in self.documents])
        self._scores = [document.score for document in documents]
        if options.document_order == "score":
            self.rank()

    def turn(self, index: int) -> _Piece:
        return _Piece("turn", index, sum(self._counts[i] for i in self._turns[index]))

    def document(self, index: int) -> _Piece:
        return _Piece("document", index, self._document_counts[index])

    def everything(self) -> _Choice:
        return self.without(())

    def without(self, pieces: Sequence[_Piece]) -> _Choice:
        """All but ``pieces``, in the order in which they come in the prompt."""
        gone = {(piece.kind, piece.index) for piece in pieces}
        turns = tuple(i for i in range(len(self._turns)) if ("turn", i) not in gone)
        documents = [i for i in range(len(self.documents)) if ("document", i) not in gone]
        if self.options.document_order == "score":
            documents.sort(key=self._from_best)
        return _Choice(turns, tuple((i, self.documents[i]) for i in documents))

    def prompt(self, choice: _Choice) -> list[int]:
        """Token ids; the template writes its own special tokens."""
        kept = {i for turn in choice.turns for i in self._turns[turn]} | set(self._system)
        chat = [m for i, m in enumerate(self._chat) if i in kept or i >= self._last]
        documents = [document for _, document in choice.documents]
        text = render_with_documents(self._template, chat, documents, **self._rendering)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def estimate_frame(self, least: int) -> float:
        """Tokens that the template adds per message, as seen on the latest turn; 0 without
        history.
        """
        if not self._turns:
            return 0.0
        latest = len(self._turns) - 1
        with_it = len(self.prompt(_Choice((latest,), ())))
        return (with_it - least - self.turn(latest).tokens) / len(self._turns[latest])

    def messages_in(self, turn: int) -> int:
        return len(self._turns[turn])

    def rank(self) -> None:
        """See to it that every document has a score."""
        if any(score is None for score in self._scores):
            texts = [f"{document.title or ''}\n{document.text}" for document in self.documents]
            self._scores = list(bm25_scores(self._chat[self._last]["content"], texts))

    def removal_order(self) -> list[_Piece]:
        """Every turn and document, from the one to go first on."""
        self.rank()
        documents = [
            self.document(i)
            for i in sorted(range(len(self.documents)), key=self._from_best, reverse=True)
        ]
        turns = [self.turn(i) for i in range(len(self._turns))]
        if self.options.strategy == "drop_middle":
            middle = (len(turns) - 1) / 2
            turns.sort(key=lambda turn: (abs(turn.index - middle), turn.index))
        first_turns = self.options.strategy in ("drop_oldest", "drop_middle")
        return turns + documents if first_turns else documents + turns

    def report(self, choice: _Choice, prompt_tokens: int, budget: int) -> ContextReport:
        kept = dict(choice.documents)
        counts = {i: self._document_counts[i] for i in kept}
        cut = [i for i, document in kept.items() if document is not self.documents[i]]
        counts |= zip(cut, self.tokenizer.count([kept[i].written() for i in cut]), strict=True)
        turns = [self.turn(i).tokens for i in range(len(self._turns))]
        kept_turns = sum(turns[i] for i in choice.turns)
        return ContextReport(
            strategy=self.options.strategy,
            max_tokens=budget,
            prompt_tokens=prompt_tokens,
            system_tokens=sum(self._counts[i] for i in self._system),
            last_message_tokens=sum(self._counts[self._last :]),
            kept_history_tokens=kept_turns,
            dropped_history_tokens=sum(turns) - kept_turns,
            kept_turns=len(choice.turns),
            dropped_turns=len(turns) - len(choice.turns),
            documents=[
                DocumentUse(i, d.id, self._scores[i], self._document_counts[i], counts.get(i, 0))
                for i, d in enumerate(self.documents)
            ],
        )

    def _from_best(self, index: int) -> tuple[float, int]:
        """Sorts best first; of equals, the one given first."""
        return -(self._scores[index] or 0.0), index


def _turns(roles: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """The places of system messages, and those of each turn's messages."""
    system: list[int] = []
    turns: list[list[int]] = []
    for i, role in enumerate(roles):
        if role in ("system", "developer"):
            system.append(i)
        elif role == "user" or not turns:
            turns.append([i])
        else:
            turns[-1].append(i)
    return system, turns


def _fit(material: _Material, least: list[int], budget: int) -> tuple[_Choice, list[int]]:
    """What stays, and the prompt."""
    everything = material.everything()
    pieces = [
        *map(material.turn, everything.turns),
        *(material.document(i) for i, _ in everything.documents),
    ]
    wanted = len(least) + sum(piece.tokens for piece in pieces)
    if material.options.strategy == "error":
        return everything, _whole(material, everything, wanted, budget)
    if wanted <= budget and len(prompt := material.prompt(everything)) <= budget:
        return everything, prompt
    order = material.removal_order()
    gone, prompt = _fewest_gone(material, order, least, budget)
    removed = order[gone - 1 :: -1] if gone else []  # the last to go first
    cuts = material.options.strategy == "truncate_documents"
    if cuts and removed and removed[0].kind == "document":
        with_part = _with_part(material, removed[1:], removed[0], prompt, budget)
        if with_part is not None:
            return with_part
    removed, prompt = _brought_back(
        material, removed, material.estimate_frame(len(least)), prompt, budget
    )
    best = next((piece for piece in removed if cuts and piece.kind == "document"), None)
    if best is not None:
        others = [piece for piece in removed if piece is not best]
        with_part = _with_part(material, others, best, prompt, budget)
        if with_part is not None:
            return with_part
    return material.without(removed), prompt


def _whole(material: _Material, everything: _Choice, wanted: int, budget: int) -> list[int]:
    """The prompt with everything in it, which must fit; one that is far too long is not written out
    to be refused.
    """
    prompt = material.prompt(everything) if wanted <= 2 * budget else None
    needed = wanted if prompt is None else len(prompt)
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


def _fewest_gone(
    material: _Material, order: Sequence[_Piece], least: list[int], budget: int
) -> tuple[int, list[int]]:
    """How many pieces must go, in order, for the rest to fit; and the prompt of that rest."""
    frame = material.estimate_frame(len(least))
    estimates = [float(len(least))]
    for piece in reversed(order):
        around = frame * material.messages_in(piece.index) if piece.kind == "turn" else 0
        estimates.append(estimates[-1] + piece.tokens + around)
    estimates.reverse()  # estimates[k]: tokens once k pieces are gone
    too_few, enough, prompt = -1, len(order), least
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


def _brought_back(
    material: _Material, removed: list[_Piece], frame: float, prompt: list[int], budget: int
) -> tuple[list[_Piece], list[int]]:
    """What is still gone once all that fits has come back, one after the other; and the prompt of
    the rest.

    Of the turns, none comes back before the one next to those that stay: the history gets no
    further holes.

    Args:
        removed: In the order in which they may come back.
        frame: Tokens around each message.
        prompt: The one without them.
    """
    slack = 0
    for _ in range(MAX_GUESSES):
        room, back, holes = float(budget - len(prompt) - slack), list[_Piece](), False
        for piece in removed:
            is_turn = piece.kind == "turn"
            tokens = piece.tokens + (frame * material.messages_in(piece.index) if is_turn else 0)
            if tokens <= room and not (is_turn and holes):
                back.append(piece)
                room -= tokens
            else:
                holes = holes or is_turn
        if not back:
            break
        left = [piece for piece in removed if piece not in back]
        tokens_with = material.prompt(material.without(left))
        if len(tokens_with) <= budget:
            removed, prompt, slack = left, tokens_with, 0
        else:
            slack += len(tokens_with) - budget
    return removed, prompt


def _with_part(
    material: _Material, gone: Sequence[_Piece], cut: _Piece, prompt: list[int], budget: int
) -> tuple[_Choice, list[int]] | None:
    """As much of the beginning of ``cut`` as still fits; ``None`` if that is next to nothing.

    Args:
        prompt: The one without it.
    """
    document = material.documents[cut.index]
    whole = material.without(gone)
    room = min(cut.tokens - 1, budget - len(prompt))
    while room >= SHORTEST_CUT:
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
