"""The operator's template replaces all of the checkpoint's; its mistakes are found at start."""

from __future__ import annotations

import pytest

from tests.text.tiny_tokenizers import byte_level
from twostroke.core.errors import ConfigError
from twostroke.core.operator.chat_template_config import ChatTemplateConfig
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.own_template import apply_template
from twostroke.text.tokenizer import Tokenizer

USER = [{"role": "user", "content": "x"}]
OWN = "{{ 'thinks' if enable_thinking else 'acts' }}: {{ messages[0].content }}"


def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(), chat_templates={"default": "plain", "tool_use": "tools"})


def applied(**fields: str) -> ChatTemplate:
    changed = tokenizer()
    apply_template(changed, ChatTemplateConfig(**fields))
    return ChatTemplate.from_tokenizer(changed)


def test_it_serves_every_conversation() -> None:
    own = applied(chat_template=OWN)
    assert own.render(USER) == own.render(USER, tools=[{"name": "f"}]) == "acts: x"
    assert applied().render(USER, tools=[{"name": "f"}]) == "tools"


def test_variables_hold_until_a_request_has_its_own() -> None:
    own = applied(chat_template=OWN, default_chat_template_kwargs='{"enable_thinking": true}')
    assert own.render(USER) == "thinks: x"
    assert own.render(USER, enable_thinking=False) == "acts: x"


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"chat_template": "{% if %}"}, "--chat-template: line 1: ", "mend the template"),
        ({"chat_template": "{{ x | nothing }}"}, "--chat-template: line 1: No filter", "mend"),
        ({"chat_template": "{#" + "x" * 600_000 + "#}"}, "at most 500000", "mend"),
        (
            {"chat_template": OWN, "default_chat_template_kwargs": '{"enable_thinkin": true}'},
            "does not read 'enable_thinkin'",
            "did you mean enable_thinking?",
        ),
        (
            {"chat_template": OWN, "default_chat_template_kwargs": '{"language": "de"}'},
            "does not read 'language'",
            "it reads enable_thinking",
        ),
    ],
)
def test_mistakes(fields: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        applied(**fields)
    assert message in caught.value.message and hint in (caught.value.hint or "")
