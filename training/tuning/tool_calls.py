"""Conversations in which pilot calls the tools of `twostroke chat --tools demo`.

Names of models and devices are a closed set, which pilot learns; numbers of tokens and results are
any, which it has to copy. Wordings of questions are split into those to train on and those to
measure with, as all others are.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.augment import add_courtesy, vary_case
from training.conversations import Conversation, ConversationBuilder, Message
from training.prompts import split_wordings
from training.tuning.phrasings import DEVICES, MODELS, NO_TOOL, PHRASINGS
from twostroke.cli.terminal_chat.demo_tools import DEMO_TOOLS

Arguments = Mapping[str, str | int]
# Numbers of tokens as people write them: round ones, powers of two, and any.
ROUND = (100, 500, 1000, 2000, 4000, 5000, 8000, 10000, 16000, 20000, 32000, 50000, 100000, 128000)
POWERS = tuple(1 << n for n in range(7, 18))


@dataclass(frozen=True)
class Call:
    """A question and the call that answers it."""

    question: str
    name: str
    arguments: Arguments

    @property
    def text(self) -> str:
        """What the model has to write."""
        return call_text(self.name, self.arguments)


def call_text(name: str, arguments: Arguments) -> str:
    """One call in the form of Hermes and Qwen, as the chat template renders it, too."""
    written = json.dumps({"name": name, "arguments": dict(arguments)})
    return f"<tool_call>\n{written}\n</tool_call>"


def declared(names: Sequence[str]) -> str:
    """What the chat template makes of tools: their names and their parameters' names."""
    tools = [f"{name}({', '.join(DEMO_TOOLS[name].parameters)})" for name in names]
    return "tools: " + ", ".join(tools)


def draw_call(rng: random.Random, name: str, *, held_out: bool = False, noise: bool = True) -> Call:
    """A question for the tool `name`, in a wording for training or for the evaluation."""
    model, device = rng.choice(sorted(MODELS)), rng.choice(sorted(DEVICES))
    tokens = draw_number(rng)
    wording = rng.choice(split_wordings(PHRASINGS[name], held_out))
    question = wording.format(
        m=_written(model, MODELS[model], rng),
        g=_written(device, DEVICES[device], rng),
        n=f"{tokens:,}" if rng.random() < 0.1 else tokens,
    )
    if noise:
        question = add_courtesy(question, rng) if rng.random() < 0.3 else question
        question = question.rstrip("?.! ") if rng.random() < 0.25 else question
        question = vary_case(question, rng)
    values: Arguments = {"model": model, "gpu": device, "tokens": tokens}
    return Call(question, name, {key: values[key] for key in DEMO_TOOLS[name].parameters})


def draw_number(rng: random.Random) -> int:
    """A number of tokens."""
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(POWERS)
    if roll < 0.55:
        return rng.choice(ROUND)
    if roll < 0.8:
        return int(10 ** rng.uniform(1.5, 5.2))
    return int(rng.randrange(1, 100) * 10 ** rng.randrange(1, 5))


def draw_result(rng: random.Random, name: str) -> str:
    """A result in the form of the tool's own, of any size: what it says is to be copied."""
    number = 10 ** rng.uniform(0, 3)
    if name == "kv_cache_size":
        return f"{number:.1f} {rng.choice(('MB', 'GB', 'GB'))}"
    if name == "decode_speed":
        return f"{10 ** rng.uniform(0.3, 4):.0f} tokens/s"
    memory = rng.choice((24, 26, 34, 48, 86, 151, 192, 206))
    return f"{'yes' if number < memory else 'no'}, {number:.0f} of {memory} GB"


def answer_from(name: str, result: str) -> str:
    """What the assistant makes of a result."""
    if result.startswith("error"):
        return "I could not compute that: the tool reports an error."
    if name == "kv_cache_size":
        return f"It takes {result} of KV cache."
    if name == "decode_speed":
        return f"At most {result} for one request: memory bandwidth is the limit."
    word, _, sizes = result.partition(", ")
    fit = "it fits" if word == "yes" else "it does not fit"
    return f"{word.capitalize()}, {fit}: the weights take {sizes}."


def _written(name: str, others: Sequence[str], rng: random.Random) -> str:
    return name if rng.random() < 0.4 else rng.choice(others)


class ToolConversations:
    """Draws conversations in which tools are declared; `bank` draws those about the bank."""

    def __init__(self, bank: ConversationBuilder) -> None:
        self._bank = bank

    def build(self, rng: random.Random, progress: float) -> Conversation:
        """Mostly a call, often its result as well; else a question that needs no tool."""
        names = sorted(DEMO_TOOLS)
        if rng.random() < 0.4:
            rng.shuffle(names)
        kind = rng.choices(("call", "result", "two", "bank", "missing"), (48, 20, 8, 18, 6))[0]
        if kind == "bank":
            return self._bank_question(names, rng)
        wanted = rng.choice(names)
        if kind == "missing":
            others = [name for name in names if name != wanted]
            call = draw_call(rng, wanted)
            asked, answer = Message("user", call.question), Message("assistant", NO_TOOL)
            return Conversation((self._system(others, rng), asked, answer))
        if rng.random() < 0.3:
            names = rng.sample(names, rng.randint(1, len(names)))
            names = names if wanted in names else [*names, wanted]
        turns = self._turns(wanted, rng, whole=kind != "call")
        if kind == "two":
            turns += self._turns(rng.choice(names), rng, whole=False)
        return Conversation((self._system(names, rng), *turns))

    def _turns(self, name: str, rng: random.Random, *, whole: bool) -> tuple[Message, ...]:
        """A question and its call; if `whole`, the result and what the assistant makes of it."""
        call = draw_call(rng, name)
        turns = (Message("user", call.question), Message("assistant", call.text))
        if not whole:
            return turns
        result = "error: unknown model" if rng.random() < 0.04 else draw_result(rng, name)
        return (*turns, Message("tool", result), Message("assistant", answer_from(name, result)))

    def _bank_question(self, names: Sequence[str], rng: random.Random) -> Conversation:
        conversation = self._bank.single(rng, stubs=0.8)
        turns = (self._system(names, rng), *conversation.messages)
        return Conversation(turns, conversation.stub, False, None)

    def _system(self, names: Sequence[str], rng: random.Random) -> Message:
        text = declared(names)
        if rng.random() < 0.15:
            text = f"{self._bank.neutral(rng)}\n\n{text}"
        return Message("system", text)
