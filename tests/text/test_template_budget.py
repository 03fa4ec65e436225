"""Chat templates from hostile checkpoints: ended early, whatever they repeat, pad or nest."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest

from tests.text.family_templates import FAMILIES
from twostroke.core.errors import InvalidRequestError, ModelLoadError
from twostroke.text.chat_template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]
HUGE = 10**10
TWICE = "{% for i in range(60) %}{% set ns.x = CALL %}{% endfor %}{{ ns.x | length }}"
LOOP = "{% for i in range(1000) %}"
NESTED = 3 * LOOP + "{% set x = i %}" + 3 * "{% endfor %}"

DOUBLED = [
    "ns.x ~ ns.x",
    "ns.x + ns.x",
    "ns.x * 2",
    "ns.x.replace('', 'aa')",
    "ns.x | replace('a', 'aa')",
    "[ns.x, ns.x] | join",
    "''.join([ns.x, ns.x])",
    "'%s%s' % (ns.x, ns.x)",
    "'%s%s' | format(ns.x, ns.x)",
    "'{0}{0}'.format(ns.x)",
    "'{a}{a}'.format(a=ns.x)",
    "ns.x | center(ns.x | length * 2)",
    "ns.x.center(ns.x | length * 2)",
    "ns.x | escape | replace('a', '&&') | string | forceescape",
    "[ns.x, ns.x]",
    "(ns.x, ns.x)",
    "{'a': ns.x, 'b': ns.x}",
    "dict(a=ns.x, b=ns.x)",
    "[1, 2] | map(attribute='a', default=ns.x) | list",
    "[ns.x, ns.x] | string",
    "[ns.x, ns.x] | tojson",
]
PADDED = [
    f"'a' | center({HUGE})",
    f"'a'.center({HUGE})",
    f"'a'.ljust({HUGE})",
    f"'a'.rjust({HUGE})",
    f"'a'.zfill({HUGE})",
    f"'a\tb'.expandtabs({HUGE})",
    f"'%{HUGE}d' % 1",
    f"'%.{HUGE}f' % 1.5",
    f"'%*d' % ({HUGE}, 1)",
    f"'%{HUGE}d' | format(1)",
    f"'{{:{HUGE}}}'.format(1)",
    f"'{{:{{}}}}'.format(1, {HUGE})",
    f"'{{a:>{HUGE}}}'.format_map({{'a': 1}})",
    f"'a' | indent({HUGE}, true)",
    f"[1] | tojson(indent={HUGE})",
    f"[1, 2] | tojson(separators=('a' * {HUGE}, ':'))",
    f"[1] | batch({HUGE}, 'a') | list",
    f"[1] | slice({HUGE}) | list",
    f"1.5 | round({HUGE}, 'ceil')",
    f"(1).to_bytes({HUGE}, 'big')",
    f"range({HUGE}) | list",
    f"'a' * {HUGE}",
    f"[1] * {HUGE}",
    f"[[1]] * {HUGE}",
    "{}.fromkeys(range(1000000), 1)",
    "(9 ** 64) ** 64 ** 64",
    "'a'.translate({97: 'a' * 900000}).translate({97: 'a' * 900000})",
]
LOOPS = [
    NESTED,
    f"{{% for i in range({HUGE}) %}}{{% endfor %}}",
    "{% for a in 'x' * 9000 %}{% for b in 'x' * 9000 %}{% endfor %}{% endfor %}",
    "{% for x in [[[]]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n else 'a' }}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ [varargs] | length }}{% set ns.x = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ f(ns.x, ns.x) }}{% endfor %}",
    "{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% for i in range(60) %}{% set y %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}"
    "{% endset %}{% set ns.x = y %}{% endfor %}",
    "{% set y %}" + LOOP + LOOP + "x" * 10_000 + "{% endfor %}{% endfor %}{% endset %}",
    "{% set r = range(3000) %}{% for i in r %}{% for x in r | map('string') | sort %}"
    "{% endfor %}{% endfor %}",
    LOOP + "{{ range(900000) | sum }}{% endfor %}",
    LOOP + "{{ (range(900000) | list | string)[0] }}{% endfor %}",
    "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ ('9' * 900000) | int(base=16) }}",
    "{{ [[1]] * 1000 | sum(start=[]) }}",
]


def render(source: str, messages: list[dict[str, Any]] = USER, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, **variables
    )


@pytest.mark.parametrize(
    "source",
    [
        *("{% set ns = namespace(x='aa') %}" + TWICE.replace("CALL", call) for call in DOUBLED),
        *("{% set y = CALL %}".replace("CALL", call) for call in PADDED),
        *("{% set ns = namespace(x='aa') %}" + source for source in LOOPS),
    ],
)
def test_what_never_ends_is_ended(source: str) -> None:
    """Each of these took minutes or all memory."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    with pytest.raises((ModelLoadError, InvalidRequestError)) as caught:
        render(source)
    assert time.thread_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB
    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "(" * 3000 + "1" + ")" * 3000,
        "1" + " + 1" * 20_000,
        "1" + " if 1 else 2" * 3000,
        "[" * 300 + "]" * 300,
        "-" * 3000 + "1",
        "9" * 5000,
    ],
)
def test_a_template_that_python_cannot_compile_is_refused(source: str) -> None:
    for text in (f"{{{{ {source} }}}}", f"{{% set x = {source} %}}"):
        try:
            render(text)
        except (ModelLoadError, InvalidRequestError) as error:
            assert error.hint and len(str(error)) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(2) %}" * 60 + "{% endfor %}" * 60,
        "{% if 1 %}" * 300 + "{% endif %}" * 300,
        "x" * 600_000,
    ],
)
def test_deep_and_long_templates_fail_at_load(source: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        ChatTemplate(source)
    assert caught.value.hint


def test_an_error_that_a_template_raises_is_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render("{{ raise_exception('x' * 100000) }}")
    assert len(str(caught.value)) < 1200


SAME = [
    "{{ 'a' + 'b' + messages[0].content + 'c' }}",
    "{{ 1 + 2 + 3.5 }}{{ [1] + [2] + messages }}{{ 'a' ~ 1 ~ none ~ [x] }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.revindex }}"
    "{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ loop.index0 }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for x in missing %}{% else %}none{% endfor %}",
    "{% for x in [[1], [2]] recursive %}({{ x }}{{ loop(x) if x is not number }}){% endfor %}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages[::-1] | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ [3, 1, 2] | sort | reverse | list }}{{ [1, 2, 2] | unique | list }}{{ [1, 2] | sum }}",
    "{{ [3, 1] | min }}{{ [3, 1] | max }}{{ [1, 2, 3] | batch(2, 0) | list }}{{ 'abc' | list }}",
    "{{ [1, 2, 3] | slice(2) | list }}{{ 'cba' | reverse }}{{ messages | first }}",
    "{{ 1.55 | round(1) }}",
    "{{ messages | groupby('role') | list | length }}{{ messages[0] | dictsort }}{{ '12' | int }}",
    "{{ '%s-%03d' % ('a', 7) }}{{ '{:>5}|{a}'.format('b', a=1) }}{{ '%s' | format('x') }}",
    "{{ ('a\nb' | indent(2)) ~ ('x' | center(5)) ~ 'a'.ljust(3) }}",
    "{{ '7'.zfill(3) ~ '-'.join('abc') }}",
    "{{ 'a,b'.split(',')[1:] }}{{ 'aXb'.replace('X', '--') }}{{ 'aXa' | replace('a', 'b', 1) }}",
    "{% set x %}<{{ messages[0].content }}{{ 3 }}>{% endset %}{{ x + x }}{{ x | trim | upper }}",
    "{% macro f(a, b='z') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{{ f(1, 2, 3, c=4) }}",
    "{% macro g() %}[{{ caller() }}]{% endmacro %}{% call g() %}in{% endcall %}",
    "{% filter upper %}a{{ messages[0].content }}{% endfilter %}{{ {'a': x, 'b': [1]} }}",
    "{{ '<a>' + ('<b>' | safe) }}{{ '<' | escape }}{{ messages[0].get('x', 'none') }}",
    "{{ messages[0].content[1:] }}{{ 'a' * 3 }}{{ 2 ** 5 }}{{ 7 % 4 }}{{ 7 // 2 }}{{ -1 }}",
    "{{ [0] * 2 }}",
    "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}"
    "{{ ns.l | tojson }}{{ dict(a=1) }}{{ joiner(',')() }}{{ range(3) | list }}{{ range(3) }}",
]


@pytest.mark.parametrize("source", [*SAME, *FAMILIES.values()])
def test_ordinary_templates_give_what_transformers_gives(source: str) -> None:
    """Counting changes no result."""
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    chat = [*USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes "}, *USER]
    expected = reference.render_jinja_template(
        [chat],
        chat_template=source,
        bos_token="<s>",
        eos_token="</s>",
        add_generation_prompt=True,
        x="y",
    )
    assert render(source, chat, x="y") == expected[0][0]


def test_long_chats_stay_within_the_budget() -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " * 500} for i in range(2048)]
    for source in FAMILIES.values():
        assert len(render(source, chat)) > 4_000_000
