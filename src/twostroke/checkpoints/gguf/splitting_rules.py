"""How byte-level tokenizers split text into words, by ``tokenizer.ggml.pre``.

The names are llama.cpp's; the patterns those that the models' ``tokenizer.json`` state, which say
the same. Of several patterns, each splits what those before left between their matches.
"""

from __future__ import annotations

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_SHORTENED}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_SHORTENED}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = (
    rf"{_SHORTENED}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _SIGNS_SLASH = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_SHORTENED}?|{_BEFORE}{_UPPER}+{_LOWER}*{_SHORTENED}?"
    rf"|\p{{N}}{{1,3}}|{_SIGNS_SLASH}|{_SPACES}"
)
_TEKKEN = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_SIGNS_SLASH}|{_SPACES}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# Letters that have a case; not those that it lacks: Georgian, Armenian, and what came later.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8a}\x{2d00}-\x{2d2d}"
    r"\x{a790}-\x{ab68}\x{10570}-\x{105bc}\x{10d50}-\x{10d85}\x{16e40}-\x{1df2a}]]"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?{_CASED}+",
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
    r"\s+$",
    r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+",
    r"\p{N}+",
)
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI_UPPER, _KIMI_LOWER = (f"{letters[:-1]}{_NOT_HAN}]" for letters in (_UPPER, _LOWER))
_KIMI = (
    rf"\p{{Han}}+|{_BEFORE}{_KIMI_UPPER}*{_KIMI_LOWER}+{_SHORTENED}?"
    rf"|{_BEFORE}{_KIMI_UPPER}+{_KIMI_LOWER}*{_SHORTENED}?|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """One of them.

    Attributes:
        whole_words: A word that is a token is not put together from merges.
        begins: Texts begin with the BOS token where the file does not say.
        composed: Text is brought into Unicode's NFC first, which GGUF does not say: as the
            makers' tokenizers do.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False
    composed: bool = False


_DIGITS_FIRST = SplittingRule((r"\p{N}", _GPT2))
_LIKE_LLAMA3 = SplittingRule((_LLAMA3,), whole_words=True, begins=True)
_LIKE_GPT4O = SplittingRule((_GPT4O,))
SPLITTING_RULES = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4"), SplittingRule((_GPT2,))),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LIKE_LLAMA3),
    **dict.fromkeys(("falcon-h1", "lfm2"), _LIKE_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), SplittingRule((_LLAMA3,))),
    "glm4": SplittingRule((_LLAMA3,), whole_words=True),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez"), SplittingRule((_QWEN2,), composed=True)
    ),
    "stablelm2": SplittingRule((_QWEN2,)),
    "qwen35": SplittingRule((_QWEN35,), composed=True),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS_FIRST
    ),
    **dict.fromkeys(("gpt-4o", "llama4"), _LIKE_GPT4O),
    "tekken": SplittingRule((_TEKKEN,), whole_words=True, begins=True),
    "deepseek-llm": SplittingRule(_DEEPSEEK),
    "deepseek-v3": SplittingRule(_DEEPSEEK3),
    "kimi-k2": SplittingRule((_KIMI,)),
}
