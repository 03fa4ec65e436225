"""From a request to the constraint of its answer."""

from __future__ import annotations

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import Constraint
from twostroke.constraints.thought_budget import ThoughtBudget, thought_is_open
from twostroke.core.step import NewRequest


def start_constraint(
    grammars: GrammarCompiler, new: NewRequest, vocab_size: int, *, alone: bool = False
) -> Constraint:
    """The constraint of a request that has one, before the first token of its answer.

    Args:
        alone: See ``Grammar.start``.

    Raises:
        InvalidRequestError: Its form cannot be enforced.
    """
    params = new.params
    constraint: Constraint | None = None
    if params.structured_outputs is not None:
        ends = grammars.end_token_ids(new.spec.eos_token_ids, params.stop_token_ids)
        constraint = grammars.compile(params.structured_outputs).start(
            ends, vocab_size, alone=alone
        )
    if params.thinking_token_budget is not None:
        prompt = new.token_ids[: new.answer_start]
        constraint = ThoughtBudget(
            constraint,
            grammars.thought_marks(),
            grammars.tokenizer,
            params.thinking_token_budget,
            opened=thought_is_open(grammars.tokenizer, prompt),
            vocab_size=vocab_size,
        )
    assert constraint is not None, "the request has neither a form nor a budget"
    return constraint
