"""Which form a model's thoughts have: tags before the answer, or messages of harmony."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.text.answer_parsing.reasoning import CLOSING, OPENING
from twostroke.tools.base import ToolFamily
from twostroke.tools.harmony import HARMONY
from twostroke.tools.registry import FAMILIES, family_of_template

# Thoughts between the tags <think> and </think>.
TAGS = "think_tags"
# Every name that --reasoning-parser takes, to the form that it means; the aliases are vLLM's.
REASONING_OF_NAME: Mapping[str, str] = {
    TAGS: TAGS,
    HARMONY.name: HARMONY.name,
    "deepseek_r1": TAGS,
    "deepseek_v3": TAGS,
    "glm45": TAGS,
    "holo2": TAGS,
    "kimi_k2": TAGS,
    "minimax_m2": TAGS,
    "nemotron_v3": TAGS,
    "olmo3": TAGS,
    "openai_gptoss": HARMONY.name,
    "qwen3": TAGS,
    "step3": TAGS,
}


def family_with_thoughts(family: ToolFamily | None, reasoning: str | None) -> ToolFamily | None:
    """The family whose messages are a model's thoughts as well; ``None``: it has no such form.

    Args:
        family: That of the model's calls.
        reasoning: The form of its thoughts, by a name of ``REASONING_OF_NAME``'s values.
    """
    if family is not None and family.has_thoughts:
        return family
    return next((own for own in FAMILIES if own.has_thoughts and own.name == reasoning), None)


def reasoning_of_template(template: str) -> str | None:
    """The form of models with this chat template; ``None`` if they answer without a thought."""
    family = family_of_template(template)
    if family is not None and family.has_thoughts:
        return family.name
    return TAGS if OPENING in template or CLOSING in template else None
