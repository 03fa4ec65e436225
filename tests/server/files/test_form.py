"""A form is read the same wherever its pieces end, and whatever is no form is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.errors import InvalidRequestError
from twostroke.server.files.form import FormReader

TYPE = "multipart/form-data; boundary=----b"
CONTENT = st.binary(max_size=60) | st.sampled_from([b"\r\n------", b"\r\n------b", b"\r\r\n\n"])


def part(disposition: bytes, content: bytes) -> bytes:
    return b"------b\r\nContent-Disposition: " + disposition + b"\r\n\r\n" + content + b"\r\n"


def read(pieces: list[bytes], kind: str = TYPE) -> tuple[dict[str, str], str | None, bytes, bool]:
    fields: dict[str, str] = {}
    reader = FormReader(kind, fields.__setitem__)
    content = b"".join(map(reader.feed, pieces))
    return fields, reader.file_name, content, reader.complete


@given(CONTENT, st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_where_pieces_end_does_not_matter(content: bytes, places: list[int], first: bool) -> None:
    if b"\r\n------b" in b"\r\n" + content + b"\r\n":
        content = content.replace(b"b", b"c")
    parts = [
        part(b'form-data; name="purpose"', b"batch"),
        part(b'form-data; name="file"; filename="a/b.txt"', content),
    ]
    form = b"".join(parts[:: 1 if first else -1]) + b"------b--\r\n"
    ends = sorted({place % (len(form) + 1) for place in places} | {len(form)})
    pieces = [form[start:end] for start, end in zip([0, *ends], ends)]
    assert read(pieces) == ({"purpose": "batch"}, "b.txt", content, True)


# Headers come as Latin-1.
HEADERS = st.binary(max_size=60).map(lambda data: data.decode("latin-1"))


@given(st.lists(st.binary(max_size=60), max_size=5), HEADERS)
def test_anything_is_read_or_refused(pieces: list[bytes], kind: str) -> None:
    for content_type in (TYPE, kind, f"multipart/form-data; {kind}"):
        try:
            read(pieces, content_type)
        except InvalidRequestError as error:
            assert error.message


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (part(b"form-data", b""), "no name"),
        (part(b'form-data; name="\xff"', b""), "not UTF-8"),
        (part(b'form-data; name="a"', b"\xff"), "not UTF-8"),
        (part(b'form-data; name="file"', b"") * 2, "two files"),
        (part(b'form-data; name="a"', b"") * 17, "more than 16 fields"),
        (part(b'form-data; name="a"', b"x" * 1025), "more than 1024 bytes"),
        (part(b'form-data; name="' + b"a" * 9000 + b'"', b""), "no form"),
        (b"------c\r\n", "no form"),
    ],
)
def test_what_is_no_such_form_is_refused(form: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read([form + b"------b--\r\n"])


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "a; boundary=b"])
def test_other_bodies_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="the body must be a form"):
        FormReader(kind, lambda name, value: None)


def test_a_form_that_is_cut_off_is_not_complete() -> None:
    assert not read([part(b'form-data; name="file"; filename="a"', b"x")])[3]
