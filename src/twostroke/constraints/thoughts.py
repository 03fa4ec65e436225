"""A thought before an answer of a given form: free text in tags or a channel, then the form."""

from __future__ import annotations

import json
from typing import Any, Literal

from twostroke.text.answer_parsing.reasoning import CLOSING, OPENING
from twostroke.text.tokenizer import Tokenizer
from twostroke.tools.harmony import FINAL_MESSAGE, add_thoughts
from twostroke.tools.rules import Rules

Thought = Literal["", "optional", "opened", "channels"]
_ANSWER = "answer"


def grammar_after_thought(grammar: str, thought: Thought, tokenizer: Tokenizer) -> str:
    """A grammar in which the answer may think first.

    Args:
        grammar: The answer's, as the library takes it.
        thought: ``opened``: the prompt ends within the thought, which has to be closed;
            ``channels``: thoughts and the answer are messages of the harmony format.
    """
    if not thought:
        return grammar
    if thought == "channels":
        rules = Rules(tokenizer)
        add_thoughts(rules)
        rules.add("start", f"thought* {rules.literal(FINAL_MESSAGE)} @{_ANSWER}")
        return with_grammar(rules.text(), _ANSWER, grammar)
    lines = ["TEXT: /(.|\\n)*/", f"closing: {_until(CLOSING, tokenizer)} /\\n{{0,2}}/"]
    if CLOSING not in tokenizer.special_texts:
        lines.append(f"closed[lazy]: TEXT {json.dumps(CLOSING)}")
    opening = _literal(OPENING, tokenizer)
    before = "closing" if thought == "opened" else f"({opening} closing)?"
    lines.append(f"start: {before} @{_ANSWER}")
    return with_grammar("\n".join(lines), _ANSWER, grammar)


def with_grammar(lark: str, name: str, inner: str) -> str:
    """A grammar in Lark's notation that refers to another one as ``@name``.

    Args:
        inner: A grammar as the library takes it: Lark's notation as it is, others as JSON.
    """
    inners = json.loads(inner)["grammars"] if inner.startswith("{") else [{"lark_grammar": inner}]
    first: dict[str, Any] = {**inners[0], "name": name}
    return json.dumps({"grammars": [{"lark_grammar": lark}, first, *inners[1:]]})


def _until(marker: str, tokenizer: Tokenizer) -> str:
    return f"TEXT {_literal(marker, tokenizer)}" if marker in tokenizer.special_texts else "closed"


def _literal(text: str, tokenizer: Tokenizer) -> str:
    if text in tokenizer.special_texts:
        return f"<[{tokenizer.backend.token_to_id(text)}]>"
    return json.dumps(text)
