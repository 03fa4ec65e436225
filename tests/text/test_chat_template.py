"""Rendering as transformers does it, and what templates cannot do."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from twostroke.core.errors import InvalidRequestError, ModelLoadError, RequestTooLargeError
from twostroke.text.chat_template import MAX_PROMPT_CHARS, ChatTemplate
from twostroke.text.tokenizer import Tokenizer

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TRIMMING = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}{{ eos_token"
    " }}\n{% endfor %}"
)
USER = [{"role": "user", "content": "hi"}]
CHAT = [*USER, {"role": "assistant", "content": "I think "}]


def render(source: str, messages: list[dict[str, Any]] = USER, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, **options
    )


def test_chatml() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_blocks_are_trimmed_as_in_transformers() -> None:
    assert render("a\n    {% if true %}\nb\n    {% endif %}\nc") == "a\nb\nc"


def test_special_tokens_and_unknown_variables() -> None:
    assert render("{{ bos_token }}|{{ pad_token }}|{{ eos_token }}") == "<s>||</s>"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_loop_controls_generation_blocks_and_namespace() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert render("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}") == "2"


def test_tojson_keeps_html_and_unicode() -> None:
    assert render("{{ x | tojson }}", x={"a": "<é'>"}) == '{"a": "<é\'>"}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_strftime_now_uses_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2025, 3, 1))
    assert template.render(USER) == "01 Mar 2025"


def test_tools_choose_their_template() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].name }}"})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"name": "f"}]) == "f"
    assert render("{{ tools is none }}") == "True"


def test_developer_is_system_unless_the_template_knows_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{# developer #}{{ messages[0].role }}", messages) == "developer"


def test_continue_final_message() -> None:
    text = render(CHATML, CHAT, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI think "
    text = render(TRIMMING, CHAT, add_generation_prompt=False, continue_final_message=True)
    assert text == "<s>[user] hi</s>\n[assistant] I think"
    with pytest.raises(InvalidRequestError, match="exclude"):
        render(CHATML, CHAT, continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="does not write out"):
        render(
            "{{ messages[0].content }}",
            CHAT,
            add_generation_prompt=False,
            continue_final_message=True,
        )


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": "hi"}]
    render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == USER


def test_without_a_template() -> None:
    for template in (ChatTemplate(None), ChatTemplate({}), ChatTemplate({"rag": "x"})):
        with pytest.raises(InvalidRequestError) as caught:
            template.render(USER)
        assert caught.value.hint


def test_raise_exception_is_the_clients_error() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ 1 / 0 }}", "{{ none + 'a' }}", "{{ a.b.c }}", "{{ x | tojson }}"]
)
def test_failures_in_a_template_are_invalid_requests(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        render(source)


def test_which_templates_are_slow() -> None:
    """A server renders those on a thread: each chat stalled its event loop for seconds."""
    assert ChatTemplate("{% for i in range(1000000) %}{% endfor %}").is_slow
    ordinary = [CHATML, None, "{{ raise_exception('no') }}"]
    assert not any(ChatTemplate(source).is_slow for source in ordinary)


def test_memory_that_runs_out_is_not_the_messages_fault() -> None:
    """It was a 400, where the server ends with a message."""

    def fail() -> str:
        raise MemoryError

    with pytest.raises(MemoryError):
        ChatTemplate("{{ fail() }}").render(USER, fail=fail)


@pytest.mark.parametrize("source", ["{% if %}", "{% unknown %}", "{{ x | nofilter }}", "{{"])
def test_broken_templates_fail_at_load(source: str) -> None:
    with pytest.raises(ModelLoadError):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}{{ ''.__class__.x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% for i in range(10000000000) %}{% endfor %}",
        "{{ range(10 ** 30) }}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 100000000000 }}",
        "{{ 100000000000 * [1] }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% for i in range(20) %}{{ 'a' * 1000000 }}{% endfor %}",
    ],
)
def test_hostile_templates_are_contained(source: str) -> None:
    started = time.perf_counter()
    with pytest.raises((ModelLoadError, InvalidRequestError)):
        render(source)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__ }}", "{{ cycler.__init__ }}", "{{ lipsum(n=1000) }}", "{{ self }}"]
)
def test_internals_are_not_shown(source: str) -> None:
    try:
        text = render(source)
    except (ModelLoadError, InvalidRequestError):
        return
    assert "class 'str'" not in text
    assert "function" not in text
    assert len(text) < 100


def test_bounds_leave_room_for_long_chats() -> None:
    text = "x" * (MAX_PROMPT_CHARS // 8)
    assert len(render(CHATML, [{"role": "user", "content": text}])) > len(text)


def test_messages_that_are_too_long_are_their_senders_fault() -> None:
    with pytest.raises(RequestTooLargeError, match="16000000 characters") as caught:
        render(CHATML, [{"role": "user", "content": "x" * MAX_PROMPT_CHARS}])
    assert caught.value.param == "messages"


def test_from_tokenizer() -> None:
    from tests.text.tiny_tokenizers import byte_level

    tokenizer = Tokenizer(
        byte_level(),
        special_tokens={"bos_token": "<|start|>"},
        chat_templates={"default": "{{ bos_token }}!"},
    )
    assert ChatTemplate.from_tokenizer(tokenizer).render(USER) == "<|start|>!"


@pytest.mark.parametrize(
    "options", [{"add_generation_prompt": True}, {"continue_final_message": True}]
)
@pytest.mark.parametrize("source", [CHATML, TRIMMING])
def test_same_text_as_transformers(source: str, options: dict[str, bool]) -> None:
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    options = {"add_generation_prompt": False, **options}
    expected = reference.render_jinja_template(
        [CHAT], chat_template=source, bos_token="<s>", eos_token="</s>", **options
    )
    assert render(source, CHAT, **options) == expected[0][0]


def test_which_templates_write_documents() -> None:
    own = "{% for d in documents %}{{ d.title }}: {{ d.text }}{% endfor %}"
    documents = [{"title": "A", "text": "b"}]
    assert render(own, documents=documents) == "A: b"
    assert ChatTemplate(own).writes_documents
    assert not ChatTemplate("{% set documents = 1 %}{{ documents }}").writes_documents
    named = ChatTemplate({"default": "plain", "rag": own, "tool_use": "tools"})
    assert (
        named.writes_documents
        and not ChatTemplate({"default": "plain", "tool_use": own}).writes_documents
    )
    assert (named.render(USER), named.render(USER, documents=documents)) == ("plain", "A: b")
    assert named.render(USER, documents=documents, tools=[{}]) == "tools"


def test_which_templates_take_a_system_message() -> None:
    refuses = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + CHATML
    )
    ignores = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert [ChatTemplate(source).writes_system for source in (CHATML, refuses, ignores)] == [
        True,
        False,
        False,
    ]
