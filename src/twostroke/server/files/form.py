"""A form (``multipart/form-data``) that is read as it comes: some fields, and one file."""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from twostroke.core.errors import InvalidRequestError

# A form of OpenAI's clients has four fields.
MAX_PARTS, MAX_VALUE_BYTES, MAX_NAME_LENGTH = 16, 1024, 255
FORM = "multipart/form-data"
_FILE = "file"


class FormReader:
    """Reads one form.

    Args:
        content_type: The request's header.
        on_field: Called with each field as soon as it is there; may raise.

    Attributes:
        file_name: The file's name, once its part has begun.
        complete: Whether the form has ended.

    Raises:
        InvalidRequestError: It is no such form.
    """

    def __init__(self, content_type: str, on_field: Callable[[str, str], None]) -> None:
        kind, options = parse_options_header(content_type)
        if kind != FORM.encode() or not options.get(b"boundary"):
            raise InvalidRequestError(
                f"the body must be a form, got {content_type[:100]!a}",
                hint=f"send the file as {FORM}, with the fields purpose and file",
            )
        self.file_name: str | None = None
        self.complete = False
        self._on_field = on_field
        self._num_parts = 0
        self._header = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._field = bytearray()
        self._content = bytearray()
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_to_header,
                    "on_header_value": self._add_to_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_to_part,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _not_a_form(error) from error

    def feed(self, data: bytes) -> bytes:
        """Read on; returns what came of the file.

        Raises:
            InvalidRequestError: The form is malformed, or has too many or too large fields.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _not_a_form(error) from error
        content, self._content = bytes(self._content), bytearray()
        return content

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} fields")
        self._headers, self._field = {}, bytearray()

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise InvalidRequestError("a part of the form has no name")
        self._name = _text(options[b"name"])
        if self._name == _FILE:
            if self.file_name is not None:
                raise InvalidRequestError("the form has two files", param=_FILE)
            # Some clients send a path.
            name = _text(options.get(b"filename", b"")).replace("\\", "/").rpartition("/")[2]
            self.file_name = name[-MAX_NAME_LENGTH:] or "upload"

    def _add_to_part(self, data: bytes, start: int, end: int) -> None:
        if self._name == _FILE:
            self._content += data[start:end]
            return
        self._field += data[start:end]
        if len(self._field) > MAX_VALUE_BYTES:
            raise InvalidRequestError(
                f"{self._name[:100]} holds more than {MAX_VALUE_BYTES} bytes",
                param=self._name[:100],
            )

    def _end_part(self) -> None:
        if self._name != _FILE:
            self._on_field(self._name, _text(self._field))

    def _end(self) -> None:
        self.complete = True


def _text(data: bytes | bytearray) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("a name or a field of the form is not UTF-8") from error


def _not_a_form(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError(
        f"the body is no form: {str(error)[:200]}", hint=f"send the file as {FORM}"
    )
