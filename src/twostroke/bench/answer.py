"""What a server answers: the events of a stream with their times, or why it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from twostroke.bench.metrics import RequestRecord
from twostroke.bench.transport import Arrival


class ReportedDetails(msgspec.Struct):
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: ReportedDetails | None = None


class ServerError(msgspec.Struct):
    message: str = ""


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct):
    text: str = ""
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

    @property
    def closes(self) -> bool:
        """It says why the answer ended, and nothing else."""
        text = self.text or (self.delta is not None and self.delta.content)
        return self.finish_reason is not None and not text


class Chunk(msgspec.Struct):
    """What matters here of one event, of either route; an error's body is read the same way."""

    choices: list[Choice] = []
    usage: ReportedUsage | None = None
    error: ServerError | str | None = None

    @property
    def error_text(self) -> str:
        return self.error.message if isinstance(self.error, ServerError) else self.error or ""


_DECODER = msgspec.json.Decoder(Chunk)
# Of one event: a server that sends more without a line's end is no server of completions.
MAX_LINE = 2**20
# More events than tokens come from servers that split characters; ten times as many do not end.
EVENTS_PER_TOKEN, SPARE_EVENTS = 10, 100
MAX_PROMPT_TOKENS = 2**31
# Of a server's own words that are repeated to a person.
SHOWN_CHARACTERS = 200


class EventReader:
    """Reads one answer's server-sent events into ``record``, whose times count from ``began``.

    Args:
        asked: Tokens that the answer may have; a server that claims or sends more has failed.

    Attributes:
        num_tokens: Events with a token so far.
    """

    def __init__(self, record: RequestRecord, began: float, asked: int | None = None) -> None:
        self.num_tokens = 0
        self._asked = asked
        self._num_events = 0
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
            if len(self._rest) > MAX_LINE:
                self._record.error = f"the server sent a line of more than {MAX_LINE >> 10} KiB"
                return False
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
        if not self._num_events:
            record.error = "the answer is no stream of events"
        elif not self._ended:
            record.error = "the stream ended without [DONE]"
        elif not record.e2el:
            record.error = "the server sent no token"
        elif usage is None:
            record.output_len, record.counted = len(record.itls) + 1, False
        elif not self._is_possible(usage):
            record.error = (
                f"the server claims {usage.prompt_tokens} tokens of prompt and"
                f" {usage.completion_tokens} of answer, where {self._asked} were asked for"
            )[:SHOWN_CHARACTERS]
        else:
            record.input_len, record.output_len = usage.prompt_tokens, usage.completion_tokens
            if (details := usage.completion_tokens_details) is not None:
                record.accepted = details.accepted_prediction_tokens or 0
                record.rejected = details.rejected_prediction_tokens or 0

    def _is_possible(self, usage: ReportedUsage) -> bool:
        most = MAX_PROMPT_TOKENS if self._asked is None else self._asked
        return (
            0 <= usage.prompt_tokens <= MAX_PROMPT_TOKENS and 0 <= usage.completion_tokens <= most
        )

    def _note(self, time: float, data: bytes) -> None:
        self._num_events += 1
        self._ended = data == b"[DONE]"
        if self._ended:
            return
        most = None if self._asked is None else self._asked * EVENTS_PER_TOKEN + SPARE_EVENTS
        if most is not None and self._num_events > most:
            self._record.error = (
                f"{most} events and no end, where {self._asked} tokens were asked for"
            )
            return
        chunk = _DECODER.decode(data)
        if chunk.error is not None:
            self._record.error = f"in mid-stream: {chunk.error_text[:SHOWN_CHARACTERS]}"
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not chunk.choices or all(choice.opens for choice in chunk.choices):
            return
        # A reason that comes in one piece with the last text is no token; one that comes later is
        # that of a token without text, such as the end of a turn.
        now = time - self._began
        if now != self._record.e2el or not all(choice.closes for choice in chunk.choices):
            self.num_tokens += 1
            _note_token(self._record, now)


def _note_token(record: RequestRecord, now: float) -> None:
    if record.e2el:
        record.itls.append(now - record.e2el)
    else:
        record.ttft = now
    record.e2el = now


def refusal(status: int, body: bytes) -> str:
    """``HTTP 429: slow down``: the server's own words, or the beginning of what it sent."""
    try:
        message = _DECODER.decode(body).error_text[:SHOWN_CHARACTERS]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = body[:SHOWN_CHARACTERS].decode(errors="replace").strip()
    return f"HTTP {status}: {message}".removesuffix(": ")
