"""What a server answers: the events of a stream with their times, or why it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from twostroke.bench.metrics import RequestRecord
from twostroke.bench.transport import Arrival


class ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ServerError(msgspec.Struct):
    message: str = ""


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def opens(self) -> bool:
        """A chat's first event has the role alone, and may come before any text."""
        delta = self.delta
        return (
            delta is not None
            and delta.role is not None
            and not delta.content
            and self.finish_reason is None
        )


class Chunk(msgspec.Struct):
    """What matters here of one event, of either route; an error's body is read the same way."""

    choices: list[Choice] = []
    usage: ReportedUsage | None = None
    error: ServerError | str | None = None

    @property
    def error_text(self) -> str:
        return self.error.message if isinstance(self.error, ServerError) else self.error or ""


_DECODER = msgspec.json.Decoder(Chunk)


class EventReader:
    """Reads one answer's server-sent events into ``record``, whose times count from ``began``."""

    def __init__(self, record: RequestRecord, began: float) -> None:
        self._record = record
        self._began = began
        self._rest = b""
        self._usage: ReportedUsage | None = None
        self._ended = False

    def feed(self, arrivals: Iterable[Arrival]) -> bool:
        """Note every event with the time at which its last byte was there.

        Returns:
            Whether the answer goes on: False after an error.

        Raises:
            msgspec.DecodeError: An event is no part of a completion.
        """
        for time, piece in arrivals:
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._note(time, line[5:].strip())
                    if self._record.error is not None:
                        return False
        return True

    def end(self) -> None:
        """Close the record: all that will come has been fed."""
        record, usage = self._record, self._usage
        if record.error is not None:
            return
        if not self._ended:
            record.error = "the stream ended without [DONE]"
        elif not record.e2el:
            record.error = "the server sent no token"
        elif usage is None:
            record.output_len, record.counted = len(record.itls) + 1, False
        else:
            record.input_len, record.output_len = usage.prompt_tokens, usage.completion_tokens

    def _note(self, time: float, data: bytes) -> None:
        self._ended = data == b"[DONE]"
        if self._ended:
            return
        chunk = _DECODER.decode(data)
        if chunk.error is not None:
            self._record.error = f"in mid-stream: {chunk.error_text}"
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.choices and not all(choice.opens for choice in chunk.choices):
            _note_token(self._record, time - self._began)


def _note_token(record: RequestRecord, now: float) -> None:
    if record.e2el:
        record.itls.append(now - record.e2el)
    else:
        record.ttft = now
    record.e2el = now


def refusal(status: int, body: bytes) -> str:
    """``HTTP 429: slow down``: the server's own words, or the beginning of what it sent."""
    try:
        message = _DECODER.decode(body).error_text
    except msgspec.DecodeError:
        message = body[:200].decode(errors="replace").strip()
    return f"HTTP {status}: {message}".removesuffix(": ")
