"""The question bank: loads and validates `bank/*.toml`, and splits off held-out phrasings.

The split depends on the phrasings alone (those with the smallest blake2b digest are held out, two
of an item's `questions` and one of its `wide`), so it is the same on every machine, and a writer
cannot aim for it. Held-out phrasings reach neither the training examples nor the tokenizer.
"""

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

BANK_DIR = Path(__file__).parent / "bank"
MIN_PHRASINGS = 8
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WORD = re.compile(r"[a-z0-9]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|etc|cf|approx|no|fig)\.)$", re.IGNORECASE)


class BankError(ValueError):
    """The bank breaks its own format; the message names the file and the item."""


@dataclass(frozen=True)
class Item:
    """One piece of knowledge: `questions` to train on, held-out ones to measure with."""

    id: str
    subject: str
    questions: tuple[str, ...]
    held_out: tuple[str, ...]
    answer: str
    more: str | None
    held_out_wide: tuple[str, ...] = ()

    @property
    def phrasings(self) -> tuple[str, ...]:
        """All of them, whatever they are for."""
        return (*self.questions, *self.held_out, *self.held_out_wide)

    @property
    def short(self) -> str:
        """The answer's first sentence."""
        return first_sentence(self.answer)


@dataclass(frozen=True)
class Bank:
    """All items in file order, normalised held-out phrasings, and a digest of the bank."""

    items: tuple[Item, ...]
    held_out_keys: frozenset[str]
    digest: str

    def subjects(self) -> list[str]:
        """File stems, in order."""
        return list(dict.fromkeys(item.subject for item in self.items))


def words_of(text: str) -> list[str]:
    """Lower-case alphanumeric words of a text, in order."""
    return _WORD.findall(text.casefold())


def phrasing_key(text: str) -> str:
    """A phrasing without case, punctuation and spacing; equal keys count as one phrasing."""
    return " ".join(words_of(text))


def first_sentence(text: str) -> str:
    """The first sentence of a text (an abbreviation such as 'e.g.' does not end one)."""
    for match in _SENTENCE_END.finditer(text):
        head = text[: match.start()]
        if not _ABBREVIATION.search(head):
            return head
    return text


def hashed_fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone; used for every held-out choice."""
    return (
        int.from_bytes(
            hashlib.blake2b(text.encode(), digest_size=8, person=b"split 2").digest(), "big"
        )
        / 2**64
    )


def split_phrasings(phrasings: list[str], count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (training, held out), with so many held out."""
    held = set(sorted(phrasings, key=hashed_fraction)[:count])
    return tuple(p for p in phrasings if p not in held), tuple(p for p in phrasings if p in held)


def _clean(text: str) -> str:
    return " ".join(text.split())


def _load_item(raw: dict[str, object], subject: str, answers: dict[str, object]) -> Item:
    where = f"{subject}.toml, item {raw.get('id')!r}"
    if unknown := set(raw) - {"id", "questions", "wide", "answer", "shared", "more"}:
        raise BankError(f"{where}: unknown keys {sorted(unknown)}")
    if "shared" in raw:
        if "answer" in raw or raw["shared"] not in answers:
            raise BankError(
                f"{where}: shared must name one of [answers], and there must be no answer beside it"
            )
        raw = raw | {"answer": answers[str(raw["shared"])]}
    ident, questions, answer, more = (
        raw.get("id"),
        raw.get("questions"),
        raw.get("answer"),
        raw.get("more"),
    )
    if not isinstance(ident, str) or not _ID.fullmatch(ident):
        raise BankError(f"{where}: id must be lower-case words joined by hyphens")
    if not isinstance(questions, list) or not isinstance(answer, str) or not answer.strip():
        raise BankError(f"{where}: needs a list of questions and an answer")
    if more is not None and not isinstance(more, str):
        raise BankError(f"{where}: more must be text")
    wide = raw.get("wide", [])
    if not isinstance(wide, list):
        raise BankError(f"{where}: wide must be a list of questions")
    # Two phrasings that differ in case or punctuation only would let a held-out one be trained on.
    unique = list({phrasing_key(str(q)): _clean(str(q)) for q in reversed(questions)}.values())[
        ::-1
    ]
    if len(unique) < 4:
        raise BankError(f"{where}: only {len(unique)} distinct phrasings")
    train, held = split_phrasings(unique, 2 if len(unique) >= MIN_PHRASINGS else 1)
    keys = {phrasing_key(q) for q in unique}
    wider = list(
        {k: _clean(str(q)) for q in wide if (k := phrasing_key(str(q))) not in keys}.values()
    )
    train_wide, held_wide = split_phrasings(wider, min(1, len(wider)))
    more = _clean(more) if more and more.strip() else None
    return Item(ident, subject, train + train_wide, held, _clean(answer), more, held_wide)


def problems_of(items: list[Item]) -> list[str]:
    """What to mend but can be trained on: few phrasings, one phrasing in two items."""
    problems = [
        f"{item.subject}/{item.id}: {count} distinct phrasings, {MIN_PHRASINGS} asked for"
        for item in items
        if (count := len(item.phrasings)) < MIN_PHRASINGS
    ]
    owner: dict[str, Item] = {}
    for item in items:
        for phrasing in item.phrasings:
            other = owner.setdefault(phrasing_key(phrasing), item)
            if other is not item:
                problems.append(
                    f"{item.subject}/{item.id} and {other.subject}/{other.id} share {phrasing!r}"
                )
    return problems


def load_bank(directory: Path = BANK_DIR) -> Bank:
    """Reads every TOML file of the folder in name order; BankError for a broken format."""
    items: list[Item] = []
    hasher = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.glob("*.toml")):
        data = path.read_bytes()
        hasher.update(path.name.encode() + b"\0" + data)
        try:
            table = tomllib.loads(data.decode("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BankError(f"{path.name}: {error}") from error
        items.extend(
            _load_item(raw, path.stem, table.get("answers", {})) for raw in table.get("item", [])
        )
    if not items:
        raise BankError(f"no items in {directory}")
    seen: dict[str, str] = {}
    for item in items:
        if item.id in seen:
            raise BankError(f"id {item.id!r} is in {seen[item.id]}.toml and in {item.subject}.toml")
        seen[item.id] = item.subject
    held = frozenset(phrasing_key(p) for item in items for p in item.held_out + item.held_out_wide)
    return Bank(tuple(items), held, hasher.hexdigest())
