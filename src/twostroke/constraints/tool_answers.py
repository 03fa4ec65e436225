"""Answers that may call tools, or have to, as grammars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.constraints.lark_rules import InlineSchema
from twostroke.constraints.tool_calls import add_call
from twostroke.text.tokenizer import Tokenizer
from twostroke.tools.base import ToolFamily, WholeAnswer
from twostroke.tools.registry import FAMILY_OF_NAME
from twostroke.tools.rules import Rules

FORM = "form"  # the grammar of an answer that calls nothing, where it has one


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
    family, max_calls = FAMILY_OF_NAME[form["family"]], form["max_calls"]
    frame = family.frame(rules)
    has_form = form.get("answer") is not None
    rules.add(
        "call",
        " | ".join(
            add_call(rules, family, place, function, inline_schema, is_choice=has_form)
            for place, function in enumerate(form["functions"])
        ),
    )
    more = "" if max_calls == 1 else f" ({rules.literal(frame.separator)} call)*"
    calls = f"{rules.literal(frame.opening)} call{more} {rules.literal(frame.closing)}"
    if family.messages is not None:
        other = None if form["must_call"] else f"@{FORM}" if has_form else "TEXT"
        rules.add("start", family.messages(rules, other))
    elif form["must_call"]:
        rules.add("start", calls)
    elif has_form:
        rules.add("start", f"{calls} | @{FORM}")
    elif family.whole is not None:
        _add_calls_or_text(rules, family.whole, calls)
    else:
        _add_triggered(rules, family, form, more, inline_schema)
    return rules.text()


def _add_triggered(
    rules: Rules,
    family: ToolFamily,
    form: Mapping[str, Any],
    more: str,
    inline_schema: InlineSchema,
) -> None:
    """Free text, with calls after their trigger."""
    frame, trigger = family.frame(rules), family.trigger
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


def _add_calls_or_text(rules: Rules, whole: WholeAnswer, calls: str) -> None:
    """Calls that are the whole answer, or text that cannot be taken for one."""
    free = f"\\s*[^\\s{whole.beginning}](.|\\n)*"
    end = whole.end
    closing = f"({rules.literal(end)})?" if end and rules.is_special(end) else ""
    rules.add("FREE", f"/{free}/")
    rules.add("calls", f"{calls} {closing}")
    if rules.is_special(whole.marker):
        opened = f"{'FREE? ' if whole.has_text else ''}{rules.literal(whole.marker)}"
    else:
        opened = "opened"
        text = f"({free})?" if whole.has_text else "\\s*"
        pattern = whole.marker.replace("|", "\\|")
        rules.add("opened[lazy]", f"/{text}{pattern}/")
    rules.add("start", f"calls | {opened} calls | FREE?")
