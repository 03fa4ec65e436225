"""All tool families: by the name of a parser, or by what a chat template writes."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.tools.base import ToolFamily
from twostroke.tools.deepseek_v3 import DEEPSEEK_V3
from twostroke.tools.harmony import HARMONY
from twostroke.tools.hermes import HERMES
from twostroke.tools.llama3_json import LLAMA3_JSON
from twostroke.tools.mistral import MISTRAL
from twostroke.tools.pythonic import PYTHONIC
from twostroke.tools.qwen3_coder import QWEN3_CODER

# A later one may have the marks of an earlier one, and more.
FAMILIES = (HERMES, QWEN3_CODER, LLAMA3_JSON, PYTHONIC, MISTRAL, DEEPSEEK_V3, HARMONY)
_ALIASES = {alias: family for family in FAMILIES for alias in family.aliases}
# Every name that --tool-call-parser takes, in the order in which it lists them.
FAMILY_OF_NAME: Mapping[str, ToolFamily] = {
    **{family.name: family for family in FAMILIES},
    **dict(sorted(_ALIASES.items())),
}


def family_of_template(template: str) -> ToolFamily | None:
    """The family of models with this chat template; ``None`` if it writes no tool calls."""
    candidates = [family for family in FAMILIES if any(mark in template for mark in family.marks)]
    special = [family for family in candidates if not family.recognised_last]
    return next(reversed(special or candidates), None)
