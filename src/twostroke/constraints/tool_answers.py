"""Answers that may call tools, or have to, as grammars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.constraints.rules import Rules
from twostroke.constraints.thoughts import FINAL_MESSAGE, add_thoughts
from twostroke.constraints.tool_calls import (
    TRIGGERS,
    Frame,
    InlineSchema,
    add_call,
    frame_of,
)
from twostroke.text.answer_parsing.families import HARMONY
from twostroke.text.tokenizer import Tokenizer

FORM = "form"  # the grammar of an answer that calls nothing, where it has one
# What text may not begin with, behind white space, where calls have no trigger: they begin so.
_BEGINNINGS = {"llama3_json": "{", "pythonic": "\\["}


def tool_call_grammar(
    form: Mapping[str, Any], tokenizer: Tokenizer, inline_schema: InlineSchema
) -> str:
    """The grammar of an answer with tool calls, in Lark's notation.

    Args:
        form: ``family``; ``functions``, each with ``name``, ``parameters``, ``strict`` and
            ``path``; ``must_call``; ``max_calls``, or none; ``closing``, if not ``listed``;
            ``answer``, if an answer without calls has a form: that is the grammar ``FORM``. Else,
            unless it must call, the answer is free text until a call opens.
        inline_schema: Checks a schema, and writes it as the library takes it.

    Raises:
        InvalidRequestError: A strict tool's schema cannot be enforced. Of others the arguments are
            then any object.
    """
    rules = Rules(tokenizer)
    family, max_calls = form["family"], form["max_calls"]
    frame = frame_of(family, rules)
    has_form = form.get("answer") is not None
    rules.add(
        "call",
        " | ".join(
            add_call(rules, family, place, function, inline_schema, as_json=has_form)
            for place, function in enumerate(form["functions"])
        ),
    )
    more = "" if max_calls == 1 else f" ({rules.literal(frame.separator)} call)*"
    calls = f"{rules.literal(frame.opening)} call{more} {rules.literal(frame.closing)}"
    if family == HARMONY:
        _add_messages(rules, must_call=form["must_call"], has_form=has_form)
    elif form["must_call"]:
        rules.add("start", calls)
    elif has_form:
        rules.add("start", f"{calls} | @{FORM}")
    elif family in TRIGGERS:
        _add_triggered(rules, form, frame, more, inline_schema)
    else:
        _add_calls_or_text(rules, family, calls)
    return rules.text()


def _add_triggered(
    rules: Rules, form: Mapping[str, Any], frame: Frame, more: str, inline_schema: InlineSchema
) -> None:
    """Free text, with calls behind their trigger."""
    family = form["family"]
    trigger = TRIGGERS[family]
    opened = rules.after_text(trigger)
    opening = frame.opening or trigger
    rest, closing = rules.literal(opening.removeprefix(trigger)), rules.literal(frame.closing)
    if frame.opening:
        rules.add("calls", f"{opened} {rest} call{more} {closing}")
    else:  # each call opens by itself: what its rule begins with has been read
        continued = [
            add_call(rules, family, i, f, inline_schema, opened=True)
            for i, f in enumerate(form["functions"])
        ]
        rules.add("calls", f"{opened} ({' | '.join(continued)}){more} {closing}")
    rules.add("start", f"calls{'?' if form['max_calls'] == 1 else '*'} ending")
    rules.add("ending", "TEXT")


def _add_calls_or_text(rules: Rules, family: str, calls: str) -> None:
    """Calls that are the whole answer, or text that cannot be taken for one."""
    marker, end = "<|python_tag|>", ""
    if family == "pythonic":
        marker, end = "<|python_start|>", "<|python_end|>"
    closing = f"({rules.literal(end)})?" if end and rules.is_special(end) else ""
    rules.add("FREE", f"/\\s*[^\\s{_BEGINNINGS[family]}](.|\\n)*/")
    rules.add("calls", f"{calls} {closing}")
    if rules.is_special(marker):
        before = "" if family == "pythonic" else "FREE? "
        opened = f"{before}{rules.literal(marker)}"
    else:
        opened = "opened"
        text = "\\s*" if family == "pythonic" else f"(\\s*[^\\s{_BEGINNINGS[family]}](.|\\n)*)?"
        pattern = marker.replace("|", "\\|")
        rules.add("opened[lazy]", f"/{text}{pattern}/")
    rules.add("start", f"calls | {opened} calls | FREE?")


def _add_messages(rules: Rules, *, must_call: bool, has_form: bool) -> None:
    """Harmony: thoughts as messages of their own, then a call or the answer."""
    add_thoughts(rules)
    final = rules.literal(FINAL_MESSAGE)
    answer = "" if must_call else f" | {final} {f'@{FORM}' if has_form else 'TEXT'}"
    rules.add("start", f"thought* (call{answer})")
