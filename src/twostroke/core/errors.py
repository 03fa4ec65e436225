"""One exception tree. Every error says what happened and, in ``hint``, what to change.

The HTTP server maps these classes to status codes in one table (``server/http/errors.py``). The
command line prints the message, a blank line, and ``hint: ...``.
"""

from __future__ import annotations

import msgspec


class TwostrokeError(Exception):
    """Base of all errors that a user of twostroke can cause or see.

    Args:
        message: One sentence that says what happened, with the numbers.
        hint: What the reader can change so that it does not happen again.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(TwostrokeError):
    """A flag, a configuration value or their combination is unusable."""


class ModelLoadError(TwostrokeError):
    """A checkpoint cannot be loaded.

    A file is missing, the architecture is unknown, or a tensor is unreadable or of wrong shape.
    """


class InsufficientMemoryError(TwostrokeError):
    """Weights or KV cache do not fit into the memory that is there."""


class InvalidRequestError(TwostrokeError):
    """A request is malformed or out of range.

    Args:
        param: The name of the offending field, as the client wrote it.
    """

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param

    def renamed(self, param: str | None, message: str | None = None) -> InvalidRequestError:
        """The refusal as another dialect says it, with its name of the field."""
        return InvalidRequestError(message or self.message, param=param, hint=self.hint)


class RequestTooLargeError(InvalidRequestError):
    """A request can never fit: ``needed`` tokens exceed the ``available`` ones.

    What is exceeded is the context length or the KV cache. Of a text that is refused before it is
    encoded, both numbers are characters.
    """

    def __init__(
        self,
        message: str,
        *,
        needed: int,
        available: int,
        param: str | None = None,
        hint: str | None = None,
    ):
        super().__init__(message, param=param, hint=hint)
        self.needed = needed
        self.available = available

    def renamed(self, param: str | None, message: str | None = None) -> RequestTooLargeError:
        """The error under another parameter; clients know the message, so it stays."""
        return RequestTooLargeError(
            self.message,
            needed=self.needed,
            available=self.available,
            param=param,
            hint=self.hint,
        )


def context_overflow(max_tokens: int, however: str) -> str:
    """The message of a ``RequestTooLargeError``, in the words by which clients know it.

    LiteLLM and others look for the first sentence, LangChain for the code within the text; they
    then try a model with a longer context, or shorten the conversation.

    Args:
        max_tokens: Limit on prompt and answer together.
        however: What the request needs, without the full stop.
    """
    return (
        f"This model's maximum context length is {max_tokens} tokens. However, {however}"
        " (context_length_exceeded)"
    )


class ModelNotFoundError(InvalidRequestError):
    """A request names a model that this server does not serve."""


class ModelLoadingError(TwostrokeError):
    """The model is not there yet (or could not be loaded)."""


class QueueFullError(TwostrokeError):
    """The queue is full, and this tenant has more than its share of it; try again later."""


class PredictedLateError(QueueFullError):
    """The first token would come later than its target allows.

    Args:
        retry_after: Whole seconds until the queue has shrunk enough, as far as is known.
    """

    def __init__(self, message: str, *, retry_after: int = 1, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class LogprobsFullError(TwostrokeError):
    """Unfinished answers hold as many log-probabilities as the server keeps; try again later."""


class MissingKeyError(TwostrokeError):
    """A request came without the API key that this server asks for."""


class InvalidKeyError(TwostrokeError):
    """A request came with an API key that this server does not know."""


class RevokedKeyError(TwostrokeError):
    """The API key was valid once."""


class AdminKeyNeededError(TwostrokeError):
    """The key is valid, but what it asks for concerns all tenants."""


class RateLimitError(TwostrokeError):
    """The key has used up what it may in a minute.

    Args:
        retry_after: Whole seconds until that changes.
    """

    def __init__(self, message: str, *, retry_after: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class RequestRateError(RateLimitError):
    """Too many requests in a minute."""


class TokenRateError(RateLimitError):
    """Too many tokens in a minute."""


class LimitStorageError(TwostrokeError):
    """The storage that counts requests and tokens does not answer, so that no limit can be kept."""


class ShuttingDownError(TwostrokeError):
    """The engine is draining: it takes no new work, and in the end lets go of what still runs."""


class EngineError(TwostrokeError):
    """Something failed inside the engine while a request ran."""


class RequestFailedError(EngineError):
    """The forward pass that carried this request failed; the message says with what."""


class NonFiniteLogitsError(EngineError):
    """The model produced NaN or infinite logits for this request."""


class TokenizerError(EngineError):
    """The tokenizer's library failed on a text; the server goes on."""


class EngineDeadError(EngineError):
    """The engine failed repeatedly and no longer serves."""


class ErrorMessage(msgspec.Struct, frozen=True):
    """An error as data, to be sent from engine to client; ``kind`` is the class's name."""

    kind: str
    message: str
    hint: str | None = None
    param: str | None = None

    @classmethod
    def of(cls, error: TwostrokeError) -> ErrorMessage:
        param = error.param if isinstance(error, InvalidRequestError) else None
        return cls(type(error).__name__, error.message, error.hint, param)

    def to_exception(self) -> TwostrokeError:
        """An exception of the kind that was sent; ``EngineError`` if the kind is unknown here."""
        if self.kind == InvalidRequestError.__name__:
            return InvalidRequestError(self.message, param=self.param, hint=self.hint)
        kinds = {kind.__name__: kind for kind in _SENT_BY_ENGINES}
        return kinds.get(self.kind, EngineError)(self.message, hint=self.hint)


# What an engine ends a request with. Most refusals are raised where the client calls.
_SENT_BY_ENGINES: tuple[type[TwostrokeError], ...] = (
    EngineError,
    RequestFailedError,
    NonFiniteLogitsError,
    EngineDeadError,
    ShuttingDownError,
    InsufficientMemoryError,
    PredictedLateError,
)


def is_panic(error: BaseException) -> bool:
    """Whether ``error`` is a panic of a library in Rust; each has its own class of that name."""
    return type(error).__name__ == "PanicException"


def panic_text(error: BaseException) -> str:
    """What an error message says of it, in one short line."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]
