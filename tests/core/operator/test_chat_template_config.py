"""``--chat-template`` as a file or as itself, and its default variables: read and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.core.errors import ConfigError
from twostroke.core.operator.chat_template_config import ChatTemplateConfig


def test_a_template_is_a_file_or_itself(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages }}\r\n", encoding="utf-8")
    assert ChatTemplateConfig(chat_template=str(path)).source() == "{{ messages }}\n"
    assert ChatTemplateConfig(chat_template="{{ messages }}").source() == "{{ messages }}"
    assert ChatTemplateConfig().source() is None
    braces = tmp_path / "{x}.jinja"
    braces.write_text("from a file")
    assert ChatTemplateConfig(chat_template=str(braces)).source() == "from a file"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jinja"
    latin.write_bytes(b"\xe9")
    for given in (tmp_path / "missing.jinja", tmp_path, latin):
        with pytest.raises(ConfigError) as caught:
            ChatTemplateConfig(chat_template=str(given)).source()
        assert caught.value.message.startswith(f"--chat-template {given}: ")
        assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{enable_thinking: false}", "--default-chat-template-kwargs is no JSON"),
        ('"x"', "--default-chat-template-kwargs must be a JSON object"),
        ('{"messages": []}', "--default-chat-template-kwargs: messages comes from each request"),
    ],
)
def test_variables_that_are_none(value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChatTemplateConfig(default_chat_template_kwargs=value)
    assert message in caught.value.message and caught.value.hint


def test_variables() -> None:
    given = ChatTemplateConfig(default_chat_template_kwargs='{"enable_thinking": false}')
    assert given.variables() == {"enable_thinking": False}
