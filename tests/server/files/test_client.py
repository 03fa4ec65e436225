"""OpenAI's own client against a real server: files sent, listed in pages, read and deleted."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai.types import FileObject

from tests.server.batches.batch_calls import openai_client, post_file
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine


@pytest.fixture
def url() -> Iterator[str]:
    with running_server(
        ScriptedEngine(), max_file_size=2**20, files_store_size=7 * 2**19, max_body_size=2**16
    ) as url:
        yield url


@pytest.fixture
def api(url: str) -> Iterator[openai.OpenAI]:
    with openai_client(url) as api:
        yield api


def send(api: openai.OpenAI, name: str = "in.jsonl", content: bytes = b"{}\n") -> FileObject:
    return api.files.create(file=(name, content), purpose="batch")


def test_a_file_comes_back_as_it_was(api: openai.OpenAI) -> None:
    content = bytes(range(256)) * 2500 + b"\r\n--"  # beyond the limit of other bodies
    file = send(api, content=content)
    FileObject.model_validate(file.model_dump())
    assert (file.bytes, file.filename, file.purpose) == (len(content), "in.jsonl", "batch")
    assert file.object == "file" and file.status == "processed"
    assert file.expires_at is not None and file.expires_at - file.created_at == 30 * 24 * 3600
    assert api.files.retrieve(file.id) == file
    assert api.files.content(file.id).content == content
    deleted = api.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    for call in (api.files.retrieve, api.files.content, api.files.delete):
        with pytest.raises(openai.NotFoundError, match="no file") as caught:
            call(file.id)
        assert caught.value.code == "file_not_found"


def test_pages(api: openai.OpenAI) -> None:
    ids = [send(api, f"{i}.jsonl").id for i in range(5)]
    assert [file.id for file in api.files.list()] == ids[::-1]
    assert [file.id for file in api.files.list(order="asc", limit=2)] == ids
    page = api.files.list(order="asc", limit=2, after=ids[1])
    assert ([file.id for file in page.data], page.has_more) == (ids[2:4], True)
    assert not api.files.list(purpose="batch_output").data
    assert not api.files.list(purpose="assistants").data
    api.files.delete(ids[1])
    with pytest.raises(openai.BadRequestError, match="after is"):
        api.files.list(after=ids[1])


def test_files_of_any_kind_of_client(api: openai.OpenAI, url: str) -> None:
    """A stream without a name; a path as a name; the fields in another order."""
    assert api.files.create(file=io.BytesIO(b"{}"), purpose="batch").bytes == 2
    assert send(api, "C:\\a\\b.jsonl").filename == "b.jsonl"
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{}\r\n'
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b"--x\r\ncontent-disposition: form-data; name=user\r\n\r\njoe\r\n--x--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    response = httpx.post(f"{url}/v1/files", content=body, headers=headers)
    assert (response.status_code, response.json()["bytes"]) == (200, 2), response.text
    assert response.headers["x-ignored-fields"] == "user"


def test_how_long_it_is_kept(api: openai.OpenAI) -> None:
    fields = {"anchor": "created_at", "seconds": 3600}
    file = api.files.create(
        file=("a", b"{}"),
        purpose="batch",
        expires_after=fields,  # type: ignore[arg-type]
    )
    assert file.expires_at is not None and file.expires_at - file.created_at == 3600


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"purpose": "fine-tune"}, "purpose must be batch, got 'fine-tune'"),
        ({"purpose": "a" * 2000}, "purpose holds more than 1024 bytes"),
        ({"expires_after[anchor]": "now"}, "expires_after[anchor] must be created_at"),
        ({"expires_after[seconds]": "5"}, "expires_after[seconds] must be from 3600"),
        ({"expires_after[seconds]": "-1"}, "expires_after[seconds] must be from 3600"),
        ({"expires_after[seconds]": "²"}, "expires_after[seconds] must be from 3600"),
        ({f"f{i}": "" for i in range(20)}, "the form has more than 16 fields"),
    ],
)
def test_nonsense_is_refused_by_name(url: str, fields: dict[str, str], message: str) -> None:
    response = post_file(url, b"{}\n", **fields)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert not httpx.get(f"{url}/v1/files").json()["data"]


def test_a_file_above_the_limit_is_refused(url: str) -> None:
    """Announced or not; what had come of it takes no room."""
    for _ in range(6):  # together more than the store holds
        response = post_file(url, b"x" * 2**20)
        assert response.status_code == 413, response.text
        assert "--max-file-size" in response.json()["error"]["message"]

        def pieces() -> Iterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            for _ in range(20):
                yield b"x" * 2**16

        headers = {"content-type": "multipart/form-data; boundary=x"}
        try:
            response = httpx.post(f"{url}/v1/files", content=pieces(), headers=headers)
            assert response.status_code == 413, response.text
        except httpx.TransportError:
            pass  # it was still sending
    assert post_file(url, b"x" * (2**20 - 1000)).status_code == 200


def test_a_full_store_says_so(url: str) -> None:
    """Nothing is pushed out: what has been stored is there until it expires or is deleted."""
    ids = []
    for _ in range(4):
        response = post_file(url, b"x" * (2**20 - 1000))
        if response.status_code != 200:
            break
        ids.append(response.json()["id"])
    assert len(ids) == 3
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "files_full")
    assert "--files-store-size" in error["message"]
    assert httpx.delete(f"{url}/v1/files/{ids[0]}").status_code == 200
    assert post_file(url, b"x" * (2**20 - 1000)).status_code == 200
