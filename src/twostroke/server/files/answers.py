"""What the routes of files answer, in OpenAI's form."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from twostroke.server.files.table import StoredFile

# What this server reads, and what it writes.
BATCH, BATCH_OUTPUT = "batch", "batch_output"
PURPOSES = (BATCH, BATCH_OUTPUT)


class FileObject(Struct, kw_only=True):
    """One file; times are Unix seconds."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def file_object(file: StoredFile) -> FileObject:
    """A stored file as clients see it."""
    return FileObject(
        id=file.id,
        bytes=file.num_bytes,
        created_at=file.created,
        expires_at=file.expires,
        filename=file.name,
        purpose=file.purpose,
    )
