"""Cases of the evaluation, seeded: phrasings, system prompts, follow-ups, long contexts."""

import random
from dataclasses import dataclass

from training import prompts
from training.bank import Bank, Item
from training.conversations import (
    ConversationBuilder,
    Message,
    begin_with,
    is_about_itself,
    named_answer,
)
from training.data import Encoder
from training.export import WEIGHTS_DIR
from training.tokenizer import IM_END, IM_START, load_tokenizer

PER_SUITE = 40
LONG_CONTEXTS = (0, 1000, 4000, 7000)  # Tokens of unrelated text before the question.


@dataclass(frozen=True)
class Case:
    """A prompt, its plain reference answer, the texts that competes with, and the form to obey."""

    suite: str
    item_id: str
    messages: tuple[Message, ...]
    expected: str
    form: str = "answer"  # answer, short, more, or fixed (no competitors)
    rule: str = ""  # begin, end, one, name, say, or nothing
    word: str = ""


def render(case: Case) -> str:
    """The prompt as the chat template renders it."""
    turns = "".join(f"{IM_START}{m.role}\n{m.content}{IM_END}\n" for m in case.messages)
    return f"{turns}{IM_START}assistant\n"


def begun_answer(case: Case) -> str:
    """The reference answer as it begins when the form is obeyed."""
    return begin_with(case.word, case.expected) if case.rule == "begin" else case.expected


def _user(text: str) -> Message:
    return Message("user", text)


def held_out_cases(bank: Bank) -> list[Case]:
    """Every held-out phrasing alone, by bank file; then those of the widest vocabulary."""
    return [
        Case(f"held-out phrasings, {i.subject}", i.id, (_user(q),), i.answer)
        for i in bank.items
        for q in i.held_out
    ] + [
        Case(f"wide phrasings, {i.subject}", i.id, (_user(q),), i.answer)
        for i in bank.items
        for q in i.held_out_wide
    ]


def _questions(items: list[Item], rng: random.Random, count: int) -> list[tuple[Item, str]]:
    chosen = rng.sample(items, min(count, len(items)))
    return [(item, rng.choice(item.held_out)) for item in chosen]


def system_cases(bank: Bank, rng: random.Random) -> list[Case]:
    """Each behaviour in held-out wordings, with held-out names and words, on held-out phrasings."""
    cases: list[Case] = []
    words = prompts.copy_words(bank)
    items = [item for item in bank.items if not is_about_itself(item)]

    def wording(group: tuple[str, ...]) -> str:
        return rng.choice(prompts.split_wordings(group, held_out=True))

    for item, q in _questions(items, rng, PER_SUITE):
        system = Message("system", wording(prompts.ONE_SENTENCE))
        cases.append(
            Case(
                "system prompt, one sentence",
                item.id,
                (system, _user(q)),
                item.short,
                "short",
                "one",
            )
        )
    for item, q in _questions(items, rng, PER_SUITE):
        system = Message("system", wording(prompts.NEUTRAL))
        cases.append(Case("system prompt, neutral", item.id, (system, _user(q)), item.answer))
    for rule, wordings in (("begin", prompts.BEGIN), ("end", prompts.END)):
        suite = f"system prompt, {rule} with a word"
        for item, q in _questions(items, rng, PER_SUITE):
            word = prompts.draw_word(rng, words, held_out=True)
            messages = (Message("system", wording(wordings).format(word) + "."), _user(q))
            cases.append(Case(suite, item.id, messages, item.answer, "answer", rule, word))
    for _ in range(PER_SUITE):
        name = prompts.draw_name(rng, held_out=True)
        system = Message("system", wording(prompts.NAME).format(name))
        messages = (system, _user(wording(prompts.IDENTITY)))
        cases.append(
            Case("system prompt, name", "", messages, named_answer(name), "fixed", "name", name)
        )
    for _ in range(PER_SUITE):
        text = prompts.draw_words(rng, words, rng.choice((1, 2, 3, 4, 6)), held_out=True)
        asked = _user(wording(prompts.SAY).format(text))
        cases.append(Case("words to say", "", (asked,), text, "fixed", "say", text))
    return cases


def follow_up_cases(bank: Bank, rng: random.Random, thanks_reply: str) -> list[Case]:
    """A question, its reference answer as the earlier turn, then a follow-up."""
    cases: list[Case] = []
    items = [item for item in bank.items if item.subject != "smalltalk"]

    def add(suite: str, group: tuple[str, ...], chosen: list[Item], form: str) -> None:
        for item, q in _questions(chosen, rng, PER_SUITE):
            asked = rng.choice(prompts.split_wordings(group, held_out=True))
            expected = {
                "answer": item.answer,
                "short": item.short,
                "more": item.more or "",
                "none": prompts.NO_MORE,
                "thanks": thanks_reply,
            }[form]
            history = (_user(q), Message("assistant", item.answer), _user(asked))
            competes = form if form in ("answer", "short", "more") else "fixed"
            cases.append(Case(f"follow-up, {suite}", item.id, history, expected, competes))

    add("tell me more", prompts.MORE, [i for i in items if i.more], "more")
    add("tell me more, nothing known", prompts.MORE, [i for i in items if not i.more], "none")
    add("repeat", prompts.REPEAT, items, "answer")
    add("shorter", prompts.SHORTER, items, "short")
    add("thanks", prompts.THANKS, items, "thanks")
    return cases


def long_context_cases(bank: Bank, rng: random.Random, builder: ConversationBuilder) -> list[Case]:
    """The same questions after 0 to 7000 tokens of text about other items, in one turn."""
    encoder = Encoder(load_tokenizer(WEIGHTS_DIR / "pilot"))
    items = [item for item in bank.items if item.subject != "smalltalk"]
    frames = prompts.split_wordings(prompts.DOCUMENT, held_out=True)
    cases: list[Case] = []
    for item, q in _questions(items, rng, PER_SUITE):
        frame = rng.choice(frames)
        text = builder.passage(rng, 2 * LONG_CONTEXTS[-1], item)
        for tokens in LONG_CONTEXTS:
            suite = f"long context, {tokens:4d} tokens before the question"
            content = (
                frame.replace("{doc}", encoder.cut(text, tokens)).replace("{q}", q) if tokens else q
            )
            cases.append(Case(suite, item.id, (_user(content),), item.answer))
    return cases


def quick_cases(bank: Bank, plain: int, each: int) -> list[Case]:
    """Some held-out phrasings, and a few cases of each other suite but the long contexts."""
    rng = random.Random(1)
    chosen = rng.sample(held_out_cases(bank), plain)
    by_suite: dict[str, list[Case]] = {}
    for case in system_cases(bank, rng) + follow_up_cases(
        bank, rng, ConversationBuilder(bank).thanks_reply
    ):
        by_suite.setdefault(case.suite, []).append(case)
    return chosen + [case for group in by_suite.values() for case in group[:each]]


def all_cases(bank: Bank, limit: int | None) -> list[Case]:
    """Every suite, each cut to `limit` cases at random if one is given."""
    rng = random.Random(20260101)
    builder = ConversationBuilder(bank)
    cases = (
        held_out_cases(bank)
        + system_cases(bank, rng)
        + follow_up_cases(bank, rng, builder.thanks_reply)
    )
    cases += long_context_cases(bank, rng, builder)
    if limit is None:
        return cases
    by_suite: dict[str, list[Case]] = {}
    for case in cases:
        by_suite.setdefault(case.suite, []).append(case)
    return [
        case for group in by_suite.values() for case in rng.sample(group, min(limit, len(group)))
    ]
