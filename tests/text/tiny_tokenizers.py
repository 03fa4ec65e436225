"""Small tokenizers of each kind, made on the spot."""

from __future__ import annotations

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteFallback, Fuse, Metaspace, Replace, Strip, WordPiece
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Sequence as DecoderSequence
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.pre_tokenizers import Metaspace as MetaspaceSplit
from tokenizers.trainers import BpeTrainer

TEXT = [
    "the quick brown fox jumps over the lazy dog, then the dog sleeps",
    "prefill reads the whole prompt at once; decode writes one token per pass",
    "naïve café: 你好世界 👩‍👩‍👧 straße",
]
SPECIAL = ["<|end|>", "<|start|>"]


def byte_level() -> Backend:
    """As GPT-2, Llama 3 and Qwen: every byte is a token."""
    backend = Backend(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXT, BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=SPECIAL)
    )
    backend.add_tokens(
        [AddedToken("<tool call>", normalized=False)]
    )  # not special, with a space inside
    return backend


def _sentencepiece_vocab() -> dict[str, int]:
    pieces = ["<unk>", *SPECIAL, *[f"<0x{b:02X}>" for b in range(256)]]
    pieces += ["▁", "▁▁", "▁the", "▁do", "g", "the", "a", "é", "你", "▁café", "\ufffd", ".", "▁."]
    return {piece: i for i, piece in enumerate(pieces)}


def byte_fallback() -> Backend:
    """As Llama 2 and Gemma: sentencepiece, with unknown characters as bytes, and the first space
    stripped.
    """
    backend = Backend(
        BPE(vocab=_sentencepiece_vocab(), merges=[], byte_fallback=True, unk_token="<unk>")
    )
    backend.decoder = DecoderSequence([Replace("▁", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    backend.add_special_tokens(SPECIAL)
    return backend


def strips_three() -> Backend:
    """Strips more than one leading space: a window may not start with spaces alone."""
    backend = byte_fallback()
    backend.decoder = DecoderSequence([Replace("▁", " "), ByteFallback(), Fuse(), Strip(" ", 3, 0)])
    return backend


def metaspace() -> Backend:
    """As T5: sentencepiece without byte fallback."""
    backend = Backend(WordLevel(_sentencepiece_vocab(), unk_token="<unk>"))
    backend.pre_tokenizer = MetaspaceSplit()
    backend.decoder = Metaspace()
    backend.add_special_tokens(SPECIAL)
    return backend


def wordpiece() -> Backend:
    """As BERT."""
    pieces = ["<unk>", *SPECIAL, "the", "dog", "##s", ".", "##.", "do", "not", "n't", "é"]
    backend = Backend(WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    backend.decoder = WordPiece()
    backend.add_special_tokens(SPECIAL)
    return backend


def no_decoder() -> Backend:
    """Tokens joined by spaces, the library's behaviour without a decoder."""
    backend = wordpiece()
    backend.decoder = None
    return backend


def nested_byte_level() -> Backend:
    """A byte-level step behind another one: the window has to wait for whole characters."""
    backend = byte_level()
    backend.decoder = DecoderSequence([Replace("zz", "z"), ByteLevelDecoder()])
    return backend


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "strips_three": strips_three,
    "metaspace": metaspace,
    "wordpiece": wordpiece,
    "no_decoder": no_decoder,
    "nested_byte_level": nested_byte_level,
}


def id_of(backend: Backend, piece: str) -> int:
    token_id = backend.token_to_id(piece)
    assert token_id is not None, piece
    return int(token_id)
