"""The prompts that a checkpoint has for its texts, by the names that clients give."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.errors import InvalidRequestError
from twostroke.core.pooling import PoolingAbility


def prompt_before(ability: PoolingAbility, names: Sequence[str], param: str) -> str:
    """The text that goes before each other, by the first of these names that the model has.

    Raises:
        InvalidRequestError: It has none of them.
    """
    prompts = dict(ability.prompts)
    for name in names:
        if name in prompts:
            return prompts[name]
    has = f"it has {', '.join(sorted(prompts))}" if prompts else "it has none"
    raise InvalidRequestError(
        f"{param}: this model has no prompt called {names[0][:100]!a}", param=param, hint=has
    )
