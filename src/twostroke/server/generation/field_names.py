"""What a dialect calls the fields of a call, and the one place where refusals get those names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """One dialect's map.

    Attributes:
        pairs: What the shared code calls a field, and what the dialect does. The first that fits
            decides, also for what lies within the field.
        placed: Gives the name of what has a place of its own, such as a tool; asked first.
        in_messages: Messages name the field, too.
        sentences: An error of the dialect is a sentence alone, which has to name the field.
        too_large_hint: What to change where a prompt does not fit.
    """

    pairs: Sequence[tuple[str, str]] = ()
    placed: Callable[[str], str | None] | None = None
    in_messages: bool = True
    sentences: bool = False
    too_large_hint: str | None = None

    def of(self, param: str) -> str:
        """The dialect's name of a field."""
        if self.placed is not None and (name := self.placed(param)) is not None:
            return name
        for ours, theirs in self.pairs:
            if param == ours or param.startswith((f"{ours}.", f"{ours}[")):
                return theirs + param.removeprefix(ours)
        return param

    @contextmanager
    def applied(self) -> Iterator[None]:
        """What is refused within is refused in the dialect's names."""
        try:
            yield
        except InvalidRequestError as error:
            if type(error) not in (InvalidRequestError, RequestTooLargeError) or not error.param:
                raise
            raise self._renamed(error, self.of(error.param)) from error

    def _renamed(self, error: InvalidRequestError, param: str) -> InvalidRequestError:
        message, ours = error.message, error.param or ""
        if self.in_messages:
            # A plain name may also be a word of the value that the message shows.
            is_path = "." in ours or "[" in ours
            message = message.replace(ours, param, -1 if is_path else 1)
        if self.sentences and param not in message:
            message = f"{param}: {message}"
        refusal = error.renamed(param, message)
        if self.too_large_hint is not None and isinstance(error, RequestTooLargeError):
            refusal.hint = self.too_large_hint
        return refusal
