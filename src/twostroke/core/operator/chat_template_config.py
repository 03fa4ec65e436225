"""The operator's chat template, and the variables that it has unless a request says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from twostroke.core.errors import ConfigError
from twostroke.core.files import is_file, read_text, reason
from twostroke.core.flags.declared import Must, check_fields
from twostroke.core.flags.json_flags import read_json_object

TEMPLATE_FLAG, VARIABLES_FLAG = "--chat-template", "--default-chat-template-kwargs"
# What the engine itself gives a template.
OWN_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
)
# A text with none of these is no template, so it must be a file's name.
_JINJA = "{}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplateConfig:
    """How conversations become prompts, where the checkpoint's own way is not wanted."""

    chat_template: Annotated[str | None, Must("a file, or a template", bool)] = None
    """Chat template (Jinja) instead of the checkpoint's: a file, or the template itself."""
    default_chat_template_kwargs: str | None = None
    """Variables of the chat template where a request has none, as JSON: `{"enable_thinking":
    false}`.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        self.variables()

    def source(self) -> str | None:
        """The template's text; ``None`` is the checkpoint's own.

        Raises:
            ConfigError: The file is not there, or cannot be read.
        """
        given = self.chat_template
        if given is None:
            return None
        if any(mark in given for mark in _JINJA) and not is_file(Path(given)):
            return given
        try:
            return read_text(Path(given))
        except (OSError, ValueError) as error:
            hint = "give a file with a Jinja template in UTF-8, or the template itself"
            raise ConfigError(f"{TEMPLATE_FLAG} {given}: {reason(error)}", hint=hint) from error

    def variables(self) -> dict[str, Any]:
        """Variables of the template; raises ConfigError for a non-object or a reserved name."""
        example = '{"enable_thinking": false}'
        values = read_json_object(VARIABLES_FLAG, self.default_chat_template_kwargs, example)
        for name in values:
            if name in OWN_VARIABLES:
                raise ConfigError(
                    f"{VARIABLES_FLAG}: {name} comes from each request", hint="leave it out"
                )
        return values
