"""From what a client asks for to a grammar in the library's notation, as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twostroke.constraints.lark_rules import checked_grammar
from twostroke.constraints.schemas.closing import Closing
from twostroke.constraints.schemas.json_schema import rewrite_schema
from twostroke.constraints.schemas.json_values import WorkLimit, check_size
from twostroke.constraints.structural_tag import structural_tag_grammar
from twostroke.constraints.thoughts import grammar_after_thought, with_grammar
from twostroke.constraints.tool_answers import FORM, tool_call_grammar
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import (
    MAX_SCHEMA_CHARS,
    PARAM,
    StructuredOutputsParams,
)
from twostroke.text.tokenizer import Tokenizer

# Between two tokens of JSON: a space, or a new line and its indentation. Without a bound a model
# can write white space until its length ends the answer.
DEFAULT_WHITESPACE = r" |\n {0,24}"


def library_grammar(wanted: StructuredOutputsParams, tokenizer: Tokenizer) -> str:
    """The grammar of what a client asks for, after a thought where the answer may have one.

    Raises:
        InvalidRequestError: What it asks for cannot be enforced; the message names the keyword.
    """
    return grammar_after_thought(_grammar_of_form(wanted, tokenizer), wanted.thought, tokenizer)


def _grammar_of_form(wanted: StructuredOutputsParams, tokenizer: Tokenizer) -> str:
    from llguidance import LLMatcher

    param = f"{PARAM}.{wanted.kind}"
    match wanted.kind:
        case "json_object":
            return json_grammar({"type": "object"}, wanted, param)
        case "json":
            return json_grammar(_json_value(wanted.json, param), wanted, param)
        case "regex":
            return LLMatcher.grammar_from_regex(_anchored(wanted.regex or ""))
        case "choice":
            texts = (json.dumps(text, ensure_ascii=False) for text in wanted.choice or ())
            # As one terminal: thousands of rules would be thousands of readings of each answer.
            return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))
        case "grammar":
            lark = _lark(wanted.grammar or "", param)
            checked = checked_grammar(lark, param, _inline_schema(wanted))
            return LLMatcher.grammar_from_lark(checked)
        case "tool_calls":
            return _tool_answer(json.loads(wanted.tool_calls or ""), wanted, tokenizer)
        case _:
            tag = _json_value(wanted.structural_tag, param)
            lark = structural_tag_grammar(tag, tokenizer, param, _inline_schema(wanted))
            return LLMatcher.grammar_from_lark(lark)


def _tool_answer(
    form: dict[str, Any], wanted: StructuredOutputsParams, tokenizer: Tokenizer
) -> str:
    """The grammar of an answer with tool calls; with the form of one without, if it has one."""
    from llguidance import LLMatcher

    lark = tool_call_grammar(form, tokenizer, _inline_schema(wanted, form.get("closing", "listed")))
    if (answer := form.get("answer")) is None:
        return LLMatcher.grammar_from_lark(lark)
    return with_grammar(lark, FORM, _grammar_of_form(StructuredOutputsParams(**answer), tokenizer))


def _inline_schema(
    wanted: StructuredOutputsParams, closing: Closing | None = None
) -> Callable[[Any, str], str]:
    """What checks a schema within a grammar and writes it as the library takes it there."""
    options, closing = json_options(wanted), closing or _closing(wanted)
    work = WorkLimit()

    def inline_schema(schema: Any, path: str) -> str:
        rewritten = rewrite_schema(schema, path, closing=closing, work=work)
        if isinstance(rewritten, bool):
            rewritten = {} if rewritten else {"enum": []}
        return json.dumps({"x-guidance": options, **rewritten})

    return inline_schema


def json_grammar(schema: Any, wanted: StructuredOutputsParams, param: str) -> str:
    """The grammar of a JSON schema."""
    from llguidance import LLMatcher

    rewritten = rewrite_schema(schema, param, closing=_closing(wanted))
    if isinstance(rewritten, bool):
        rewritten = {} if rewritten else {"enum": []}
    return LLMatcher.grammar_from_json_schema(
        json.dumps(rewritten),
        overrides=json_options(wanted),  # type: ignore[arg-type]
    )


def _closing(wanted: StructuredOutputsParams) -> Closing:
    return "all" if wanted.disable_additional_properties else "none"


def json_options(wanted: StructuredOutputsParams) -> dict[str, Any]:
    """How JSON is spaced, in the library's terms."""
    if wanted.disable_any_whitespace:
        return {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return {"whitespace_pattern": wanted.whitespace_pattern or DEFAULT_WHITESPACE}


def _json_value(value: str | dict[str, Any] | None, param: str) -> Any:
    """What was given as an object or as text, no larger than it may be."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{param} is not valid JSON: {error}", param=param) from error
    check_size(value, MAX_SCHEMA_CHARS, param)
    return value


def _anchored(regex: str) -> str:
    """An expression matches the whole answer, so its anchors at both ends say nothing."""
    regex = regex.removeprefix("^")
    if regex.endswith("$") and not regex.endswith("\\$"):
        return regex.removesuffix("$")
    return regex


def _lark(grammar: str, param: str) -> str:
    """A grammar in Lark's notation; one in GBNF is translated."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the translation raises its own and, on nonsense, any other
        message = " ".join(str(error).split())[:300]
        raise InvalidRequestError(
            f"{param} cannot be read as GBNF: {message}", param=param
        ) from error
