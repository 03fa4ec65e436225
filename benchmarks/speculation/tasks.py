"""What is asked: the bank's held-out questions, and an answer to be said again."""

from __future__ import annotations

import random
from collections.abc import Callable

from training import prompts
from training.bank import Bank, Item, load_bank

Messages = list[dict[str, str]]


def questions(number: int, count: int) -> list[Messages]:
    """Held-out phrasings, others in each round."""
    items = _shuffled(load_bank(), number)
    draw = random.Random(f"phrasing {number}")
    return [[_user(draw.choice(item.held_out))] for item in items[:count]]


def copying(number: int, count: int) -> list[Messages]:
    """A question with its answer in the conversation, which is then asked for once more."""
    items = [item for item in _shuffled(load_bank(), number) if item.subject != "smalltalk"]
    draw = random.Random(f"copying {number}")
    wordings = prompts.split_wordings(prompts.REPEAT, held_out=True)
    return [
        [
            _user(draw.choice(item.held_out)),
            {"role": "assistant", "content": item.answer},
            _user(draw.choice(wordings)),
        ]
        for item in items[:count]
    ]


TASKS: dict[str, Callable[[int, int], list[Messages]]] = {
    "questions": questions,
    "copying": copying,
}


def _shuffled(bank: Bank, number: int) -> list[Item]:
    items = list(bank.items)
    random.Random(number).shuffle(items)
    return items


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
