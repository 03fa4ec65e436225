"""Blocks that bring text along: documents and search results, and how the model is shown them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from twostroke.core.sampling_params import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from twostroke.server.http.body_fields import FirstMistake, StrictModel
from twostroke.server.http.validation_errors import explained

CACHE_ALWAYS = "prefixes are cached as long as there is room"
# Keys of blocks, which ignore unknown ones as well: these are in the API document.
IGNORED_IN_BLOCKS = {"cache_control": CACHE_ALWAYS, "citations": "answers have none"}
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "max_tokens": {"minimum": 0},
    "temperature": {"minimum": 0, "maximum": 100},
    "top_k": {"minimum": -1},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "stop_sequences": {
        "maxItems": MAX_STOP_STRINGS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_LENGTH},
    },
}
_AS_TEXT = 'send its text: a source {"type": "text", "media_type": "text/plain", "data": "..."}'
# Why a document's source is refused, by the type that the API gives it.
_NOT_READ = {
    "base64": "this server reads no PDF files",
    "url": "this server fetches no addresses",
    "file": "this server reads files of batches alone",
}


class AnthropicFields(StrictModel):
    """The base of the request objects of this API."""

    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = LIMITS


class TypedFields(AnthropicFields):
    """What has a type, by which it needs some of the other fields."""

    ignores_unknown: ClassVar[bool] = True
    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    type: str

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        for field in self.needed.get(self.type, ()):
            if getattr(self, field) is None:
                how = "null" if field in self.model_fields_set else "missing"
                raise PydanticCustomError("missing_field", "missing", {"field": field, "how": how})
        return self


class TextFields(AnthropicFields):
    """A text: of the system prompt, or within a document."""

    ignores_unknown: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = IGNORED_IN_BLOCKS

    type: Literal["text"]
    text: str

    def shown(self) -> str:
        """What the model reads of it."""
        return self.text


def texts_of(content: str | Iterable[TextFields | PartFields] | None) -> list[str]:
    """The texts that a content stands for."""
    if isinstance(content, str):
        return [content]
    return [part.shown() for part in content or ()]


def _check_is_read(kind: Any) -> Any:
    if isinstance(kind, str) and kind in _NOT_READ:
        raise explained(_NOT_READ[kind], _AS_TEXT)
    return kind


def _check_is_plain(media_type: Any) -> Any:
    if isinstance(media_type, str) and media_type != "text/plain":
        raise explained("this server reads text/plain alone", _AS_TEXT)
    return media_type


class SourceFields(TypedFields):
    """The text of a document, in the request itself."""

    nested: ClassVar[tuple[str, ...]] = ("content",)
    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("data",), "content": ("content",)}

    type: Annotated[Literal["text", "content"], BeforeValidator(_check_is_read)]
    media_type: Annotated[Literal["text/plain"], BeforeValidator(_check_is_plain)] | None = None
    data: str | None = None
    content: str | Annotated[list[TextFields], FirstMistake()] | None = None

    def texts(self) -> list[str]:
        """The pieces of the document's text."""
        return [self.data or ""] if self.type == "text" else texts_of(self.content)


def _source_kind(source: Any) -> str:
    # In brackets, as pydantic writes what is no field: error messages leave them out.
    return "[object]" if isinstance(source, (dict, SourceFields)) else "[text]"


_Source = Annotated[
    Annotated[str, Tag("[text]")] | Annotated[SourceFields, Tag("[object]")],
    Discriminator(_source_kind),
]


class PartFields(TypedFields):
    """A text, a document or a search result; subclasses say what ``content`` may hold.

    ``cache_control`` and ``citations`` are ignored: the answer to a document has no citations.
    """

    ignored: ClassVar[Mapping[str, str]] = IGNORED_IN_BLOCKS
    nested: ClassVar[tuple[str, ...]] = ("source", "content")
    needed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "text": ("text",),
        "document": ("source",),
        "search_result": ("source", "title", "content"),
    }

    text: str | None = None
    source: _Source | None = Field(
        None, description="Of a document its text; of a search result where it was found."
    )
    title: str | None = None
    context: str | None = Field(None, description="Of a document: what is known of it.")
    content: str | Sequence[Any] | None = None

    @field_validator("source", mode="before")
    @classmethod
    def _of_another_type(cls, source: Any, info: ValidationInfo) -> Any:
        """An image has one, too: then its type is the mistake."""
        return source if "type" in info.data else None

    @model_validator(mode="after")
    def _has_the_source_of_its_type(self) -> Self:
        wanted = {"document": (SourceFields, "an object"), "search_result": (str, "a text")}
        kind, name = wanted.get(self.type, (object, ""))
        if not isinstance(self.source, kind):
            raise explained(f"the source of a {self.type} must be {name}")
        return self

    def shown(self) -> str:
        """What the model reads of it: a text as it is, the others between tags with their names."""
        if self.type == "text":
            return self.text or ""
        labels = {"source": self.source, "title": self.title, "context": self.context}
        lines = [f"<{key}>{it}</{key}>" for key, it in labels.items() if isinstance(it, str)]
        source = self.source
        texts = source.texts() if isinstance(source, SourceFields) else texts_of(self.content)
        return "\n".join([f"<{self.type}>", *lines, *texts, f"</{self.type}>"])


class ResultPartFields(PartFields):
    """A part of what a tool answered."""

    type: Literal["text", "document", "search_result"]
    content: str | Annotated[list[TextFields], FirstMistake()] | None = Field(
        None, description="The text of a search result."
    )
