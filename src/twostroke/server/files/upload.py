"""An upload: from the pieces of a form's body to a stored file, never held whole."""

from __future__ import annotations

from fastapi import Request
from starlette.requests import ClientDisconnect

from twostroke.core.errors import InvalidRequestError
from twostroke.server.files.answers import BATCH
from twostroke.server.files.form import FormReader
from twostroke.server.files.store import FileStore, FileWriter
from twostroke.server.files.table import StoredFile

# How long a file is kept, in seconds: by default, at least and at most.
MONTH = 30 * 24 * 3600
SHORTEST = 3600
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_KNOWN = ("purpose", _ANCHOR, _SECONDS)


class UploadFields:
    """The fields beside the file, checked one by one: a mistake ends the upload where it is met.

    Attributes:
        ignored: Those that are unknown here.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self.ignored: list[str] = []

    def take(self, name: str, value: str) -> None:
        """One field has come.

        Raises:
            InvalidRequestError: Its value means nothing here.
        """
        if name not in _KNOWN:
            self.ignored.append(name)
            return
        self._values[name] = value
        if name == "purpose" and value != BATCH:
            raise InvalidRequestError(
                f"purpose must be {BATCH}, got {value[:100]!a}: this server reads files of batches"
                " alone",
                param="purpose",
            )
        if name == _ANCHOR and value != "created_at":
            raise InvalidRequestError(f"{_ANCHOR} must be created_at", param=_ANCHOR)
        if name == _SECONDS:
            self._check_seconds(value)

    def check_complete(self, reader: FormReader) -> None:
        """Raise ``InvalidRequestError`` unless the form was whole."""
        given = {*self._values, *(("file",) if reader.file_name is not None else ())}
        for name in ("purpose", "file"):
            if name not in given:
                raise InvalidRequestError(f"{name} is missing", param=name)
        if not reader.complete:
            raise InvalidRequestError("the form ends before its last boundary")

    @property
    def seconds(self) -> int:
        """How long the file is to be kept."""
        return int(self._values.get(_SECONDS, MONTH))

    def _check_seconds(self, value: str) -> None:
        ok = value.isascii() and value.isdigit() and len(value) < 10
        if not ok or not SHORTEST <= int(value) <= MONTH:
            raise InvalidRequestError(
                f"{_SECONDS} must be from {SHORTEST} to {MONTH}, got {value[:40]!a}",
                param=_SECONDS,
            )


async def upload(store: FileStore, request: Request, tenant: str) -> tuple[StoredFile, list[str]]:
    """Store the file of a form.

    Returns:
        The file, and the fields that were ignored.

    Raises:
        InvalidRequestError: The form is malformed.
        FilesFullError: There is no room for the file.
    """
    fields = UploadFields()
    reader = FormReader(request.headers.get("content-type", ""), fields.take)
    writer = await FileWriter.begin(store, tenant)
    try:
        async for piece in request.stream():
            await writer.write(reader.feed(piece))
        fields.check_complete(reader)
        expires = int(store.clock()) + fields.seconds
        file = await writer.end(reader.file_name or "", BATCH, expires)
    except BaseException as error:
        await writer.discard()
        if isinstance(error, ClientDisconnect):
            raise InvalidRequestError("the client left before the end of the file") from error
        raise
    return file, fields.ignored
