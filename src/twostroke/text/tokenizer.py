"""A checkpoint's tokenizer, over the `tokenizers` library and with `tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from twostroke.core.errors import (
    InvalidRequestError,
    ModelLoadError,
    TokenizerError,
    is_panic,
    panic_text,
)
from twostroke.model_spec.config_fields import short
from twostroke.model_spec.json_files import read_object
from twostroke.text.byte_tokens import byte_level_bytes, decoder_steps, fallback_byte, space_symbol
from twostroke.text.tokenizer_growth import check_growth

# Longer texts are encoded as a batch: only for batches does the library release the GIL.
LONG_TEXT = 20_000

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """Turns text into token ids and back, as `transformers` would for the same folder.

    Two differences are deliberate: truncation and padding that a `tokenizer.json` may prescribe are
    switched off (a prompt is never shortened silently), and `clean_up_tokenization_spaces` is not
    applied (it cannot be streamed).

    Safe to use from several threads: nothing changes after construction but a cache of token bytes.

    Args:
        backend: The loaded `tokenizers` object; this class takes it over and changes its settings.
        special_tokens: Name (`bos_token`, `eos_token` ...) to text.
        chat_templates: Template name to Jinja source; the usual one is called `default`.

    Attributes:
        template_defaults: Variables of the chat template where a conversation has none.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens: dict[str, str] = dict(special_tokens or {})
        self.chat_templates: dict[str, str] = dict(chat_templates or {})
        self.template_defaults: dict[str, Any] = {}
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(
            i for i, token in added.items() if token.special
        )
        self.special_texts: frozenset[str] = frozenset(
            token.content for token in added.values() if token.special
        )
        # The count is too low where the added tokens leave gaps after the model's vocabulary.
        self.vocab_size: int = max(
            backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added), 0
        )
        self.bos_token_id: int | None = self._special_id("bos_token")
        self.eos_token_id: int | None = self._special_id("eos_token")
        self.decoder_steps: list[dict[str, Any]] = decoder_steps(backend)
        self._added = {i: token.content for i, token in added.items()}
        self.added_texts: frozenset[str] = frozenset(self._added.values())
        # Added tokens are looked for in the text as it is, or as the normalizer changes it.
        self.matches_normalised = backend.normalizer is not None and any(
            token.normalized for token in added.values()
        )
        self._space = space_symbol(self.decoder_steps)
        self._step_types = {str(step["type"]) for step in self.decoder_steps}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Load `tokenizer.json` and, where they exist, the files beside it.

        Read are `tokenizer_config.json` (special tokens, `add_bos_token`, chat template),
        `special_tokens_map.json`, `chat_template.jinja` and `additional_chat_templates/*.jinja`.

        Raises:
            ModelLoadError: If `tokenizer.json` is missing, or a file is malformed or contradicts
                another.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(f"no tokenizer.json in {folder}", hint=_missing_hint(folder))
        try:
            backend = Backend.from_file(str(path))
        except BaseException as error:  # the library raises bare Exception, or panics
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            hint = "download the file again, or upgrade the `tokenizers` package"
            raise ModelLoadError(f"cannot read {path}: {panic_text(error)}", hint=hint) from error
        check_growth(backend, path)
        with _misread(folder):
            config = {
                **_read_json(folder / "special_tokens_map.json"),
                **_read_json(folder / "tokenizer_config.json"),
            }
            specials = {
                name: text
                for name in SPECIAL_TOKEN_NAMES
                if (text := _token_text(config.get(name))) is not None
            }
            _add_declared_tokens(backend, config, specials.values(), folder)
            set_bos_and_eos(backend, config, specials)
            templates = _read_chat_templates(folder, config)
            return cls(backend, special_tokens=specials, chat_templates=templates)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognized.

        A rendered chat template brings its own BOS: encode it with `add_special_tokens=False`.

        Raises:
            InvalidRequestError: If the text cannot be written as UTF-8 (a lone surrogate, as from
                JSON "\\ud800").
            TokenizerError: If the library fails on the text.
        """
        with _failures(text):
            if len(text) > LONG_TEXT:
                encoding = self.backend.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )[0]
            else:
                encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
            ids: list[int] = encoding.ids
        return ids

    def encode_pieces(self, pieces: Sequence[str], add_special_tokens: bool = False) -> list[int]:
        """Token ids of pieces of one text; a special token that is cut in two is none.

        Where the model's BOS and EOS are added, pieces are joined by spaces.
        """
        if add_special_tokens:
            return self.encode(" ".join(pieces))
        ids = self.encode(pieces[0], add_special_tokens=False)
        for piece in pieces[1:]:
            ids += self.encode(piece, add_special_tokens=False)
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]:
        """Token ids of two texts as the model joins them.

        Returns:
            The tokens, and where the second text begins, if the model marks the two apart.
        """
        with _failures(first, second):
            encoding = self.backend.encode(first, second)
        types: list[int] = encoding.type_ids
        return encoding.ids, types.index(1) if 1 in types else None

    def count(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has by itself, see ``encode_all``."""
        return list(map(len, self.encode_all(texts)))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text by itself, without the model's BOS; on all cores, GIL released."""
        with _failures(*texts):
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def prefix(self, text: str, num_tokens: int) -> str:
        """The text of the first `num_tokens` tokens; a character that they split stays whole."""
        if num_tokens < 1:
            return ""
        if self.max_chars_per_token is not None:
            text = text[: num_tokens * self.max_chars_per_token]  # the rest need not be encoded
        with _failures(text):
            encoding = self.backend.encode_batch([text], add_special_tokens=False)[0]
        offsets = encoding.offsets  # [tokens] of (start, end)
        return text if num_tokens >= len(offsets) else text[: offsets[num_tokens - 1][1]]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD, unknown ids become nothing."""
        if len(ids) > LONG_TEXT:  # as a batch: see LONG_TEXT
            return str(self.backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0])
        text: str = self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    @cached_property
    def max_chars_per_token(self) -> int | None:
        """The most characters that a token stands for; ``None`` if tokens may drop text."""
        if self._step_types != {"ByteLevel"} and "ByteFallback" not in self._step_types:
            return None
        # Unicode's normal forms compose at most four characters into one.
        shrinks = 1 if self.backend.normalizer is None else 4
        return shrinks * max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    def piece(self, token_id: int) -> str:
        """The token as the vocabulary spells it (``Ġthe``, ``▁the``); empty outside of it."""
        return self.backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, possibly a part of a character; empty outside the vocabulary.

        Joined over an output they give its UTF-8 text, up to a leading space that
        sentencepiece-like tokenizers drop.
        """
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._compute_bytes(token_id)
        return data

    def token_text(self, token_id: int) -> str:
        """The token as text: with its leading space, and U+FFFD for a part of a character."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _compute_bytes(self, token_id: int) -> bytes:
        piece: str | None = self.backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if piece is None:
            return b""
        if self._step_types == {"ByteLevel"}:
            return byte_level_bytes(piece)
        if token_id in self._added:
            return piece.encode()
        if "ByteFallback" in self._step_types and (byte := fallback_byte(piece)) is not None:
            return bytes([byte])
        if self._space is not None:
            return piece.replace(self._space, " ").encode()
        return self.decode([token_id], skip_special_tokens=False).encode()

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)


@contextmanager
def _failures(*texts: object) -> Iterator[None]:
    """What the library raises while it encodes ``texts``, as errors of the request."""
    try:
        yield
    except (TypeError, UnicodeEncodeError) as error:
        raise _not_unicode(next(filter(_is_no_unicode, texts), texts[0])) from error
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise TokenizerError(
            f"the tokenizer failed on this text: {panic_text(error)}",
            hint="its tokenizer.json may be broken; send another text, or load it again",
        ) from error


def _is_no_unicode(text: object) -> bool:
    return not isinstance(text, str) or any("\ud800" <= c <= "\udfff" for c in text)


def _not_unicode(text: object) -> InvalidRequestError:
    if not isinstance(text, str):
        return InvalidRequestError(f"text must be a string, got {type(text).__name__}")
    position = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), 0)
    hint = "send characters beyond U+FFFF as UTF-8 or as a complete pair of \\u escapes"
    return InvalidRequestError(
        f"the text holds a lone surrogate at character {position}, which is not Unicode", hint=hint
    )


def _missing_hint(folder: Path) -> str:
    if not folder.is_dir():
        return "the folder does not exist; give the path of a downloaded checkpoint"
    if (folder / "tokenizer.model").is_file():
        return (
            "there is only a sentencepiece tokenizer.model; convert it by loading and saving it"
            " with transformers"
        )
    return "download the checkpoint with its tokenizer files"


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    return read_object(path, "download the file again") if path.is_file() else {}


@contextmanager
def _misread(folder: Path) -> Iterator[None]:
    """A value of an unexpected type, in files that have dozens of fields, as an error."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise ModelLoadError(
            f"{folder / 'tokenizer_config.json'} or a file beside it holds a value that is not as"
            f" it should be: {panic_text(error)}",
            hint="download the file again",
        ) from error


def _token_text(value: object) -> str | None:
    """Special tokens are written as text, or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_declared_tokens(
    backend: Backend, config: dict[str, Any], specials: Iterable[str], folder: Path
) -> None:
    """Make the backend treat as special, or know at all, what only the configuration declares."""
    declared = config.get("added_tokens_decoder")
    entries = (
        sorted(declared.items(), key=lambda item: int(item[0]))
        if isinstance(declared, dict)
        else []
    )
    for token_id, entry in entries:
        if backend.token_to_id(entry["content"]) is None:
            flags = {
                k: bool(entry.get(k)) for k in ("single_word", "lstrip", "rstrip", "normalized")
            }
            token = AddedToken(entry["content"], **flags)
            (backend.add_special_tokens if entry.get("special") else backend.add_tokens)([token])
            if (actual := backend.token_to_id(entry["content"])) != int(token_id):
                message = (
                    f"tokenizer_config.json gives {short(entry['content'])} the id {token_id},"
                    f" tokenizer.json {actual}"
                )
                raise ModelLoadError(
                    message, hint=f"the tokenizer files in {folder} do not belong together"
                )
    special_texts = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    marked = [e["content"] for _, e in entries if e.get("special")] + list(specials)
    marked += [
        t for t in map(_token_text, config.get("additional_special_tokens") or ()) if t is not None
    ]
    for text in dict.fromkeys(marked):
        if text not in special_texts and backend.token_to_id(text) is not None:
            backend.add_special_tokens([AddedToken(text, normalized=False)])


def set_bos_and_eos(backend: Backend, config: dict[str, Any], specials: Mapping[str, str]) -> None:
    """Let `add_bos_token`, `add_eos_token` override the post-processor, as transformers 5 does."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    single, tokens = ["$A:0"], []
    for flag, name, position in (
        ("add_bos_token", "bos_token", 0),
        ("add_eos_token", "eos_token", 2),
    ):
        text = specials.get(name)
        token_id = None if text is None else backend.token_to_id(text)
        if config.get(flag) and text is not None and token_id is not None:
            single.insert(position, f"{text}:0")
            tokens.append((text, token_id))
    backend.post_processor = TemplateProcessing(single=single, special_tokens=tokens)


def _read_chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files win over `chat_template` of the configuration."""
    templates: dict[str, str] = {}
    configured = config.get("chat_template")
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):  # named ones
        for entry in configured:
            if not (isinstance(entry["name"], str) and isinstance(entry["template"], str)):
                raise TypeError("a chat template or its name is no text")
            templates[entry["name"]] = entry["template"]
    try:
        if (path := folder / "chat_template.jinja").is_file():
            templates["default"] = path.read_text(encoding="utf-8")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            templates[path.stem] = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(
            f"cannot read {path}: {error}", hint="download the file again"
        ) from error
    return templates
