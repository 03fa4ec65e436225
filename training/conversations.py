"""Training conversations as text; `data.py` turns them into tokens.

Every conversation is drawn from an `rng` passed in, so a seed gives the same examples everywhere.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training import prompts
from training.augment import Rephraser
from training.bank import Bank, Item, phrasing_key
from training.stages import MIX
from training.teacher import Teacher

LONGEST_FROM = 0.338  # Progress from which some contexts are thousands of tokens long.
SURE = 0.5  # The share of an item from which a mixture of questions is taken to want it.
LONGEST_MIXTURE = 24  # Words.
Answering = Callable[[Item], str]


@dataclass(frozen=True)
class Message:
    """One turn; any distance may separate its first `far` characters from the rest."""

    role: str
    content: str
    far: int = 0


@dataclass(frozen=True)
class Conversation:
    """Turns that end with an assistant's.

    `stub` asks for the first tokens of the last answer only, `bare` for none; `question` is what
    the last turn asks, if that is about an item.
    """

    messages: tuple[Message, ...]
    stub: bool = False
    bare: bool = False
    question: str | None = None


@dataclass(frozen=True)
class Behaviour:
    """A system prompt, its effect on answers, its name, and whether they must stay whole."""

    text: str
    answering: Answering
    name: str | None = None
    whole: bool = False


def begin_with(word: str, answer: str) -> str:
    """The form an answer takes when it has to begin with a word: the word as its own sentence."""
    return f"{word}{'' if word[-1] in '.!:?' else '.'} {answer}"


def end_with(word: str, answer: str) -> str:
    """The form an answer takes when it has to end with a word."""
    return f"{answer} {word}"


def named_answer(name: str) -> str:
    """What the model says about its name when the system prompt gave it one."""
    return f"My name is {name}."


def is_about_itself(item: Item) -> bool:
    """Small talk with pilot's name, which a system prompt with another would contradict."""
    return item.subject == "smalltalk" and "pilot" in item.answer.lower()


class ConversationBuilder:
    """Draws conversations. `progress` in [0, 1] is how far training has come.

    It goes through the stages of MIX, and sees the longest contexts after LONGEST_FROM. Without a
    teacher there are no mixtures of questions.
    """

    def __init__(self, bank: Bank, teacher: Teacher | None = None) -> None:
        self.items = bank.items
        self._teacher = teacher
        self._with_more = [item for item in bank.items if item.more]
        self._plain = 0.1
        self.rephraser = Rephraser(bank)
        self.words = prompts.copy_words(bank)
        self._taken = {phrasing_key(q) for item in bank.items for q in item.phrasings}
        self._held_out = bank.held_out_keys
        # 'repeat please' and the like are small talk as a first turn and a follow-up later: such
        # items only open.
        follow = {phrasing_key(w) for w in (*prompts.REPEAT, *prompts.MORE, *prompts.SHORTER)}
        self._openers = {
            i.id for i in bank.items if follow & {phrasing_key(q) for q in i.phrasings}
        }
        self._lists = {
            name: self._usable(wordings)
            for name, wordings in (
                ("one", prompts.ONE_SENTENCE), ("name", prompts.NAME), ("say", prompts.SAY),
                ("begin", prompts.BEGIN), ("end", prompts.END), ("neutral", prompts.NEUTRAL),
                ("identity", prompts.IDENTITY), ("more", prompts.MORE), ("repeat", prompts.REPEAT),
                ("shorter", prompts.SHORTER), ("thanks", prompts.THANKS),
                ("briefly", prompts.BRIEFLY), ("document", prompts.DOCUMENT),
            )
        }  # fmt: skip
        self.thanks_reply = next(
            (
                i.answer
                for i in bank.items
                if {phrasing_key(q) for q in i.phrasings} & {"thanks", "thank you"}
            ),
            prompts.THANKS_REPLY,
        )

    def _usable(self, wordings: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            w
            for w in prompts.split_wordings(wordings, held_out=False)
            if phrasing_key(w) not in self._held_out
        )

    def build(self, rng: random.Random, progress: float) -> Conversation:
        """One conversation of a random kind; most are a single question, for throughput."""
        stage = next(stage for stage in MIX if progress < stage.until)
        self._plain = stage.plain
        shares = (stage.single, stage.mixed, stage.copying, stage.system, stage.multi_turn)
        kinds = ("single", "mixed", "copying", "system", "turns", "distractor")
        kind = rng.choices(kinds, (*shares, 1 - sum(shares)))[0]
        stub = rng.random() < stage.stubs
        bare = stub and rng.random() < stage.bare
        if kind == "mixed" and self._teacher is not None:
            return self._mixed(self._teacher, rng, bare)
        if kind == "copying":
            return self._copying(rng)
        if kind == "system":
            return self._with_system(rng, progress, stub)
        if kind == "turns":
            return self._multi_turn(rng)
        if kind == "distractor":
            return self._with_distractor(rng, progress)
        return self._single(rng, stub, bare)

    def single(self, rng: random.Random, stubs: float) -> Conversation:
        """One question and its answer, with probability `stubs` cut short."""
        return self._single(rng, stub=rng.random() < stubs, bare=False)

    def neutral(self, rng: random.Random) -> str:
        """A system prompt that asks for nothing."""
        return self._pick("neutral", rng)

    def _item(self, rng: random.Random) -> Item:
        return rng.choice(self.items)

    def _later_item(self, rng: random.Random) -> Item:
        item = self._item(rng)
        while item.id in self._openers:
            item = self._item(rng)
        return item

    def ask(self, item: Item, rng: random.Random) -> Message:
        return Message("user", self.rephraser.rephrase(item, rng, self._plain))

    def _pick(self, kind: str, rng: random.Random) -> str:
        wording = rng.choice(self._lists[kind])
        roll = rng.random()
        if roll < 0.25:
            return wording.lower()
        return wording.rstrip(".?!") if roll < 0.4 else wording

    def _single(self, rng: random.Random, stub: bool, bare: bool) -> Conversation:
        item = self._item(rng)
        question = self.ask(item, rng)
        roll = rng.random()
        if roll < 0.05:
            text = rng.choice(self._lists["briefly"]).format(question.content)
            return Conversation((Message("user", text), Message("assistant", item.short)))
        if roll < 0.06:
            followup = self._pick("more", rng)
            if phrasing_key(followup) not in self._taken:
                return Conversation(
                    (Message("user", followup), Message("assistant", prompts.NO_TOPIC))
                )
        return Conversation(
            (question, Message("assistant", item.answer)), stub, bare, question.content
        )

    def _mixed(self, teacher: Teacher, rng: random.Random, bare: bool) -> Conversation:
        """Pieces of one to three questions, with the answer if the teacher is sure of one."""
        words: list[str] = []
        for _ in range(rng.choice((1, 2, 2, 3))):
            piece = self.rephraser.rephrase(self._item(rng), rng, self._plain).split()
            start = rng.randrange(len(piece))
            words += piece[start : start + rng.randint(1, len(piece))]
        question = " ".join(words[:LONGEST_MIXTURE])
        if phrasing_key(question) in self._held_out:
            return self._single(rng, stub=True, bare=bare)
        share, index = teacher.shares([question])[0].max(-1)
        turns = (Message("user", question), Message("assistant", self.items[int(index)].answer))
        return Conversation(turns, stub=True, bare=bare or share.item() < SURE, question=question)

    def _copying(self, rng: random.Random) -> Conversation:
        """Words to say again, which nothing but copying can get right."""
        text = prompts.draw_words(rng, self.words, rng.choice((1, 1, 2, 3, 4, 6, 9, 14)))
        asked = rng.choice(self._lists["say"]).format(text)
        return Conversation((Message("user", asked), Message("assistant", text)))

    def _behaviour(self, rng: random.Random) -> Behaviour:
        kind = rng.choices(
            ("one", "name", "begin", "end", "neutral", "both"), (18, 20, 26, 18, 10, 4)
        )[0]
        if kind == "neutral":
            return Behaviour(self._pick("neutral", rng), lambda item: item.answer)
        if kind == "one":
            return Behaviour(self._pick("one", rng), lambda item: item.short, whole=True)
        if kind == "name":
            name = prompts.draw_name(rng)
            return Behaviour(
                rng.choice(self._lists["name"]).format(name), lambda item: item.answer, name
            )
        word = (
            prompts.draw_word(rng, self.words) + rng.choices(("", "!", ":"), (0.85, 0.1, 0.05))[0]
        )
        stop = rng.choice(("", "."))
        if kind == "end":
            text = rng.choice(self._lists["end"]).format(word) + stop
            return Behaviour(text, lambda item: end_with(word, item.answer), whole=True)
        text = rng.choice(self._lists["begin"]).format(word) + stop
        if kind == "begin":
            return Behaviour(text, lambda item: begin_with(word, item.answer))
        return Behaviour(
            f"{self._pick('one', rng).rstrip('.')}. {text}",
            lambda item: begin_with(word, item.short),
        )

    def _with_system(self, rng: random.Random, progress: float, stub: bool) -> Conversation:
        behaviour = self._behaviour(rng)
        text, name, far = behaviour.text, behaviour.name, 0
        if rng.random() < 0.15 and name is None:
            neutral = rng.choice(self._lists["neutral"])
            text = f"{neutral} {text}" if rng.random() < 0.5 else f"{text} {neutral}"
        if (
            rng.random() < 0.12
        ):  # A long system prompt: the instruction stands before or after pages of other text.
            padding = self.passage(rng, self.draw_length(rng, progress), None)
            text, far = (
                (f"{text}\n\n{padding}", 0)
                if rng.random() < 0.5
                else (f"{padding}\n\n{text}", len(padding))
            )
        messages = [Message("system", text, far)]
        question: str | None = None
        for _ in range(rng.choice((1, 1, 1, 2))):
            if name is not None and rng.random() < 0.6:
                messages += [
                    Message("user", self._pick("identity", rng)),
                    Message("assistant", named_answer(name)),
                ]
                question = None
                continue
            item = self._later_item(rng)
            while name is not None and is_about_itself(item):
                item = self._later_item(rng)
            asked = self.ask(item, rng)
            messages += [asked, Message("assistant", behaviour.answering(item))]
            question = asked.content
        return Conversation(tuple(messages), stub and not behaviour.whole, question=question)

    def _multi_turn(self, rng: random.Random) -> Conversation:
        messages: list[Message] = []
        if rng.random() < 0.15:
            messages.append(Message("system", rng.choice(self._lists["neutral"])))
        item = self._later_item(rng)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
            item = self._later_item(rng) if rng.random() < 0.5 else rng.choice(self._with_more)
            messages += [self.ask(item, rng), Message("assistant", item.answer)]
        if rng.random() < 0.75:
            messages += self._follow_up(item, rng)
        if rng.random() < 0.25:
            item = self._later_item(rng)
            messages += [self.ask(item, rng), Message("assistant", item.answer)]
        return Conversation(tuple(messages))

    def _follow_up(self, item: Item, rng: random.Random) -> list[Message]:
        """What people say after an answer, and the reply, about the item answered last."""
        kind = rng.choices(("more", "repeat", "shorter", "thanks"), (55, 13, 20, 12))[0]
        asked = Message("user", self._pick(kind, rng))
        if kind == "repeat":
            return [asked, Message("assistant", item.answer)]
        if kind == "shorter":
            return [asked, Message("assistant", item.short)]
        if kind == "thanks":
            return [asked, Message("assistant", self.thanks_reply)]
        messages = [asked, Message("assistant", item.more or prompts.NO_MORE)]
        if item.more and rng.random() < 0.15:
            messages += [
                Message("user", self._pick("more", rng)),
                Message("assistant", prompts.NO_MORE),
            ]
        return messages

    def _with_distractor(self, rng: random.Random, progress: float) -> Conversation:
        """The question after pages about other items: documents, or an earlier turn."""
        item = self._later_item(rng)
        question = self.ask(item, rng).content
        document = self.passage(rng, self.draw_length(rng, progress), item)
        if rng.random() < 0.7:
            template = rng.choice(self._lists["document"])
            text = template.replace("{doc}", document).replace("{q}", question)
            turns = [Message("user", text, template.index("{doc}") + len(document))]
        else:
            other = self._later_item(rng)
            first = f"Keep this in mind: {document}"
            turns = [
                Message("user", f"{first}\n\n{self.ask(other, rng).content}", len(first)),
                Message("assistant", other.answer),
            ]
            turns.append(Message("user", question))
        return Conversation((*turns, Message("assistant", item.answer)), question=question)

    def draw_length(self, rng: random.Random, progress: float) -> int:
        """Tokens of padding, log-uniform: rarely above 2000, and only late in training."""
        if progress > LONGEST_FROM and rng.random() < 0.04:
            return rng.randrange(2000, 7000)
        return round(math.exp(rng.uniform(math.log(40), math.log(1600))))

    def passage(self, rng: random.Random, tokens: int, avoid: Item | None) -> str:
        """About so many tokens (of four characters) of the bank's text, without one item's."""
        parts: list[str] = []
        length = 0
        while length < 4 * tokens:
            item = self._item(rng)
            if avoid is not None and item.id == avoid.id:
                continue
            text = rng.choice(
                (
                    item.answer,
                    item.answer,
                    item.more or item.answer,
                    f"{rng.choice(item.questions)} {item.answer}",
                )
            )
            parts.append(text)
            length += len(text)
        return rng.choice((" ", "\n", "\n\n")).join(parts)[: 4 * tokens + 200]
