"""A GGUF file's vocabulary as a tokenizer of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.checkpoints.gguf.splitting_rules import SPLITTING_RULES, SplittingRule
from twostroke.core.errors import ModelLoadError, is_panic, panic_text
from twostroke.model_spec.config_fields import short
from twostroke.text.tokenizer import Tokenizer, set_bos_and_eos

_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_SPACE = "▁"
# What models end a turn with; files name one end token where a model has several.
_ENDS_OF_TURN = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>"}
    | {"<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"}
    | {"<eos>", "</s>", "<turn|>", "<|tool_response>"}
)
_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # as the format spells it
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
MAX_PIECE = 64  # characters of a token that is looked for splits into two


class TokenKind(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer, with the chat templates of the file.

    Raises:
        ModelLoadError: It is missing, contradicts itself, or is of a kind that is not supported.
    """
    kind = metadata.text(f"{_KEY}model")
    tokens, kinds = _tokens(metadata)
    if kind == "llama":
        backend, begins = _sentencepiece(metadata, tokens, kinds), True
    elif kind == "gpt2":
        rule = _rule(metadata)
        backend, begins = _byte_level(metadata, tokens, rule), rule.begins
    elif kind == "gemma4":
        backend, begins = _characters(metadata, tokens), True
    else:
        known = "llama, gpt2 and gemma4 are supported"
        raise metadata.refusal(f"{_KEY}model", f"is {short(kind)}: {known}")
    for index, text in enumerate(tokens):
        if kinds[index] in (TokenKind.CONTROL, TokenKind.UNKNOWN):
            backend.add_special_tokens([AddedToken(text, normalized=False)])
        elif kinds[index] == TokenKind.USER_DEFINED:
            backend.add_tokens([AddedToken(text, normalized=False)])
    ids = {name: _token_id(metadata, key, len(tokens)) for name, key in _NAMES.items()}
    specials = {name: tokens[own] for name, own in ids.items() if own is not None}
    flags = {
        "add_bos_token": metadata.flag(f"{_KEY}add_bos_token", begins),
        "add_eos_token": metadata.flag(f"{_KEY}add_eos_token", False),
    }
    set_bos_and_eos(backend, flags, specials)
    return Tokenizer(backend, special_tokens=specials, chat_templates=_templates(metadata))


def end_tokens(metadata: Metadata) -> list[int]:
    """What ends an answer: what the file names, and tokens that end a turn wherever they are."""
    tokens, _ = _tokens(metadata)
    named = (_token_id(metadata, f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom"))
    ends = [index for index in named if index is not None]
    ends += [index for index, text in enumerate(tokens) if text in _ENDS_OF_TURN]
    return list(dict.fromkeys(ends))


def _tokens(metadata: Metadata) -> tuple[list[str], Sequence[float]]:
    """Texts and kinds by token id; what ends turns is a control token, whatever the file says."""
    tokens = metadata.texts(f"{_KEY}tokens")
    kinds: Sequence[float] = [TokenKind.NORMAL] * len(tokens)
    if f"{_KEY}token_type" in metadata:
        kinds = metadata.numbers(f"{_KEY}token_type")
    if len(kinds) != len(tokens):
        raise metadata.refusal(f"{_KEY}token_type", f"is not of {len(tokens)} tokens")
    control = TokenKind.CONTROL
    return tokens, [
        control if text in _ENDS_OF_TURN else kind for text, kind in zip(tokens, kinds, strict=True)
    ]


def _token_id(metadata: Metadata, key: str, count: int) -> int | None:
    if f"{_KEY}{key}" not in metadata:
        return None
    index = metadata.integer(f"{_KEY}{key}")
    if not 0 <= index < count:
        raise metadata.refusal(f"{_KEY}{key}", f"is {index} of {count} tokens")
    return index


def _vocabulary(metadata: Metadata, tokens: Sequence[str]) -> dict[str, int]:
    vocabulary = {text: index for index, text in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(text for index, text in enumerate(tokens) if vocabulary[text] != index)
        raise metadata.refusal(f"{_KEY}tokens", f"has {short(twice)} twice")
    return vocabulary


def _rule(metadata: Metadata) -> SplittingRule:
    name = metadata.text(f"{_KEY}pre", "default")
    if name not in SPLITTING_RULES:
        raise ModelLoadError(
            f"{metadata.path}: {_KEY}pre is {short(name)}: how text is split into words is not"
            " known",
            hint="supported: " + ", ".join(SPLITTING_RULES),
        )
    return SPLITTING_RULES[name]


def _byte_level(metadata: Metadata, tokens: Sequence[str], rule: SplittingRule) -> Backend:
    """Tokenizer of GPT-2: the bytes of words, merged by rank."""
    backend = _bpe(
        metadata,
        _vocabulary(metadata, tokens),
        _merges(metadata),
        ignore_merges=rule.whole_words,
    )
    if rule.composed:
        backend.normalizer = normalizers.NFC()
    splits = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Pairs by rank; a token that begins with a space is the left of one."""
    stated = metadata.texts(f"{_KEY}merges") if f"{_KEY}merges" in metadata else []
    parts = ((merge[:1], *merge[1:].partition(" ")) for merge in stated)
    return [(first + left, right) for first, left, _, right in parts]


def _characters(metadata: Metadata, tokens: list[str]) -> Backend:
    """Gemma 4's: characters of lines, or bytes, merged by rank; no space is put first."""
    unknown = _token_id(metadata, "unknown_token_id", len(tokens))
    backend = _bpe(
        metadata,
        _vocabulary(metadata, tokens),
        _merges(metadata),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), behavior="isolated")
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    return backend


def _sentencepiece(metadata: Metadata, tokens: list[str], kinds: Sequence[float]) -> Backend:
    """Llama 2's and Gemma's: characters, merged by the score of what they make, or bytes."""
    scores = metadata.numbers(f"{_KEY}scores")
    if len(scores) != len(tokens):
        raise metadata.refusal(f"{_KEY}scores", f"is not of {len(tokens)} tokens")
    vocabulary = _vocabulary(metadata, tokens)
    normal = [kind == TokenKind.NORMAL for kind in kinds]
    merges = _merges_by_score(vocabulary, scores, normal)
    unknown = _token_id(metadata, "unknown_token_id", len(tokens))
    backend = _bpe(
        metadata,
        vocabulary,
        merges,
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    prefixed = metadata.flag(f"{_KEY}add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    prefix = [normalizers.Prepend(_SPACE)] if prefixed else []
    backend.normalizer = normalizers.Sequence([*prefix, spaces])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] * prefixed)])
    return backend


def _merges_by_score(
    vocabulary: Mapping[str, int], scores: Sequence[float], normal: Sequence[bool]
) -> list[tuple[str, str]]:
    """Each way to make a token of two, best tokens first."""
    ranked = sorted(vocabulary, key=lambda text: (-scores[vocabulary[text]], vocabulary[text]))
    merges: list[tuple[str, str]] = []
    for text in ranked:
        if not normal[vocabulary[text]] or not 1 < len(text) <= MAX_PIECE:
            continue
        pairs = ((text[:at], text[at:]) for at in range(1, len(text)))
        known_pairs = [(a, b) for a, b in pairs if a in vocabulary and b in vocabulary]
        merges += sorted(known_pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return merges


def _bpe(
    metadata: Metadata, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> Backend:
    try:
        return Backend(BPE(vocab=vocabulary, merges=merges, **options))
    except BaseException as error:  # the library raises bare Exception, or panics
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise metadata.refusal(f"{_KEY}merges", f"cannot be read: {panic_text(error)}") from error


def _templates(metadata: Metadata) -> dict[str, str]:
    """Chat templates by name."""
    templates = {}
    if _TEMPLATE in metadata:
        templates["default"] = metadata.text(_TEMPLATE)
    for key in metadata.values:
        if key.startswith(f"{_TEMPLATE}."):
            templates[key.removeprefix(f"{_TEMPLATE}.")] = metadata.text(key)
    return templates
