"""The operator's chat template in place of the checkpoint's, checked before the weights load."""

from __future__ import annotations

from difflib import get_close_matches

from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.core.operator.chat_template_config import (
    OWN_VARIABLES,
    TEMPLATE_FLAG,
    VARIABLES_FLAG,
    ChatTemplateConfig,
)
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer


def apply_template(tokenizer: Tokenizer, config: ChatTemplateConfig) -> None:
    """Give a tokenizer the template and the variables of ``config``.

    As in vLLM, the one template serves all conversations, also those with tools or documents.

    Raises:
        ConfigError: The template cannot be read or does not parse, or reads no such variable.
    """
    source, variables = config.source(), config.variables()
    if source is not None:
        tokenizer.chat_templates = {"default": source}
        _check(tokenizer)
    if variables:
        read = _check(tokenizer).variables
        for name in variables:
            if name not in read:
                near = get_close_matches(name, read, n=1)
                given = OWN_VARIABLES.union(tokenizer.special_tokens)
                names = ", ".join(sorted(read - given)) or "none of its own"
                raise ConfigError(
                    f"{VARIABLES_FLAG}: the chat template does not read {name[:60]!r}",
                    hint=f"did you mean {near[0]}?" if near else f"it reads {names}",
                )
        tokenizer.template_defaults = variables


def _check(tokenizer: Tokenizer) -> ChatTemplate:
    try:
        return ChatTemplate.from_tokenizer(tokenizer)
    except ModelLoadError as error:
        message = error.message.removeprefix("chat template 'default', ")
        raise ConfigError(f"{TEMPLATE_FLAG}: {message}", hint="mend the template") from error
