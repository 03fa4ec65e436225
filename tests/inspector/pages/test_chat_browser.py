"""Protects: the chat in a real browser, from the first message to the links behind an answer.

What the engine says is scripted where a test needs certain words; the server is always real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.showing import showing
from tests.server.running import running_server, wait_until
from tests.server.scripted import Script, ScriptedEngine
from tests.server.tiny import tiny_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page

pytestmark = needs_browser
SENT = "**/v1/chat/completions"
MARKDOWN = (
    *("<think>", "first this, ", "then that", "</think>"),
    *("## A title\n\n", "- one `x < y`\n", "- **two** &amp; three\n\n"),
    *("```python\n", "print('<b>')\n", "```\n\n"),
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n",
    "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>\n\n",
    "[bad](javascript:document.title='hacked') [good](https://example.com/) ",
    "![picture](https://example.com/x.png)\n",
)
CALL = ('<tool_call>\n{"name": "get_weather", ', '"arguments": {"city": "Paris"}}\n</tool_call>')
PARSERS: dict[str, Any] = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
SOME_ANSWER = ".answer[aria-busy=false]"


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    with tiny_engine() as engine, running_server(engine) as url:
        yield f"{url}/inspect/"


@contextmanager
def scripted(
    browser: Browser, *pieces: str, seconds: float = 0.0, endless: bool = False, **options: Any
) -> Iterator[tuple[Page, ScriptedEngine]]:
    """The page over a server whose model says these pieces."""
    script = Script(pieces, max_model_len=4000, seconds_per_step=seconds, endless=endless)
    engine = ScriptedEngine(script)
    with (
        running_server(engine, **PARSERS) as url,
        opened(browser, f"{url}/inspect/#/chat", **options) as page,
    ):
        page.wait_for_selector(".start")
        yield page, engine


def say(page: Page, text: str) -> None:
    """Say something, and wait for the whole answer."""
    number = page.locator(".answer").count()
    page.fill("#say", text)
    page.keyboard.press("Enter")
    page.locator(".answer").nth(number).wait_for()
    page.wait_for_selector(".answer[aria-busy=true]", state="detached")


def bodies(page: Page) -> list[dict[str, Any]]:
    """The requests of the chat, as they are sent."""
    sent: list[dict[str, Any]] = []
    page.on(
        "request",
        lambda request: (
            sent.append(json.loads(request.post_data or "{}"))
            if request.url.endswith("/chat/completions")
            else None
        ),
    )
    return sent


def test_a_browser_at_the_root_is_led_to_the_chat(browser: Browser, live: str) -> None:
    root = live.removesuffix("inspect/")
    with opened(browser, root) as page:
        page.wait_for_selector("text=Talk to scripted")
        assert page.evaluate("location.hash") == "#/chat"
    assert "Ollama" in httpx.get(root).text


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_it_is_shown_without_a_violation(browser: Browser, theme: str, width: int) -> None:
    with scripted(browser, *MARKDOWN, width=width, color_scheme=theme) as (page, _):
        assert violations(page) == []
        say(page, "Show me")
        page.click(".about >> text=Why")
        page.wait_for_selector(".answer .why")
        assert violations(page) == []
        if width < 1180:
            for name in ("Settings", "Conversations"):
                page.click(f".chat-bar >> text={name}")
                assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_markdown_is_elements_and_html_is_text(browser: Browser) -> None:
    with scripted(browser, *MARKDOWN) as (page, _):
        say(page, "<b>Show</b> me")
        assert page.locator(".said .plain").inner_text() == "<b>Show</b> me"
        answer = page.locator(".answer .markdown")
        assert answer.locator("[role=heading]").inner_text() == "A title"
        assert answer.locator("li").all_inner_texts() == ["one x < y", "two & three"]
        assert answer.locator("li strong").inner_text() == "two"
        assert answer.locator(".code pre").inner_text() == "print('<b>')"
        assert "python" in answer.locator(".code p").inner_text()
        assert answer.locator("td").all_inner_texts() == ["1", "2"]
        assert page.locator(".thread img, .thread script, .thread b").count() == 0
        assert "<img src=x" in answer.inner_text()
        links = answer.locator("a").evaluate_all("links => links.map(link => link.href)")
        assert links == ["https://example.com/", "https://example.com/x.png"]
        assert page.title() == "twostroke inspector"
        thoughts = page.locator(".answer details.thoughts")
        assert thoughts.get_attribute("open") is None
        assert "4 words" in thoughts.inner_text()
        thoughts.locator("summary").click()
        assert "first this, then that" in thoughts.inner_text()


@pytest.mark.parametrize("text", ["> " * 5000, "1. " * 3000, "- " * 400, "*a" * 3000, "[" * 9000])
def test_text_that_is_hard_to_read_breaks_nothing(browser: Browser, text: str) -> None:
    with scripted(browser, text, "and an end") as (page, _):
        say(page, "Go on")
        assert "and an end" in page.locator(".answer").inner_text()
        say(page, "once more")
        assert page.locator(".answer").count() == 2


def test_wrong_tools_are_told_before_anything_is_sent(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, engine):
        say(page, "the dog")
        page.fill(".settings >> text=Tools", "[{")
        page.wait_for_selector(".settings [role=alert] >> text=Tools are not JSON")
        assert page.locator(".settings >> text=Copy as curl").is_disabled()
        page.fill("#say", "again")
        page.keyboard.press("Enter")
        page.wait_for_selector(".composer [role=alert]")
        page.click("text=Regenerate")
        page.wait_for_selector(".answer [role=alert] >> text=Tools are not JSON")
        assert len(engine.submitted) == 1


def test_text_is_shown_as_it_comes_and_stop_ends_the_request(browser: Browser) -> None:
    with scripted(browser, "on ", seconds=0.05, endless=True) as (page, engine):
        page.fill("#say", "Go on")
        page.keyboard.press("Enter")
        page.wait_for_selector(".answer >> text=on on on")
        assert page.locator(".answer").get_attribute("aria-busy") == "true"
        page.click("text=Stop")
        page.wait_for_selector("text=You stopped it.")
        wait_until(lambda: len(engine.aborted) == 1, 10)
        assert violations(page) == []
        page.wait_for_selector("button >> text=Send")


def test_calls_are_shown_and_their_results_given_back(browser: Browser) -> None:
    with scripted(browser, *CALL) as (page, engine):
        sent = bodies(page)
        page.click("text=An example")
        say(page, "Weather?")
        assert page.locator(".call code").inner_text() == "get_weather"
        assert '"city": "Paris"' in page.locator(".call pre").inner_text()
        assert violations(page) == []
        engine.script.pieces = ("It is ", "sunny.")
        page.fill(".result textarea", "sun, 20 degrees")
        page.click("text=Give it back")
        page.wait_for_selector(".answer >> text=It is sunny.")
        assert sent[0]["tools"][0]["function"]["name"] == "get_weather"
        called, result = sent[1]["messages"][-2:]
        assert called["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
        assert result["content"] == "sun, 20 degrees"
        assert result["tool_call_id"] == called["tool_calls"][0]["id"]


def test_settings_and_files_go_with_the_request(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}#/chat") as page:
        sent = bodies(page)
        page.fill(".settings >> text=System prompt", "Be short.")
        page.fill(".settings >> text=Temperature", "0")
        page.fill(".settings >> text=Most tokens", "5")
        files: list[FilePayload] = [
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"the dog is brown"},
            {"name": "x.png", "mimeType": "image/png", "buffer": b"\x89PNG\x00\xff"},
        ]
        page.set_input_files("#attach", files)
        page.wait_for_selector("text=x.png is no text")
        say(page, "the dog")
        body = sent[0]
        assert body["messages"][0] == {"role": "system", "content": "Be short."}
        assert (body["temperature"], body["max_tokens"]) == (0, 5)
        assert body["documents"] == [{"title": "notes.txt", "text": "the dog is brown"}]
        assert "min_p" not in body
        assert "5 tokens" in page.locator(".about .num").inner_text()
        assert "It reached its greatest length" in page.locator(".answer").inner_text()
        page.fill(".settings >> text=Temperature", "")
        page.fill(".settings >> text=Most tokens", "3")
        say(page, "and the fox")
        assert "temperature" not in sent[1]
        assert sent[1]["documents"] == body["documents"]  # it stays part of the conversation
        assert [message["role"] for message in sent[1]["messages"]] == [
            *("system", "user", "assistant", "user")
        ]


def test_editing_and_asking_again_make_branches(browser: Browser) -> None:
    with scripted(browser, "first") as (page, engine):
        say(page, "one")
        engine.script.pieces = ("second",)
        page.click("text=Regenerate")
        page.wait_for_selector(".answer >> text=second")
        assert page.locator(".answer").count() == 1
        page.click("[aria-label='The answer before']")
        page.wait_for_selector(".answer >> text=first")
        engine.script.pieces = ("third",)
        page.click(".said >> text=Edit")
        page.fill("#edit", "another")
        page.click(".edit >> text=Send")
        page.wait_for_selector(".answer >> text=third")
        assert page.locator(".said .plain").inner_text() == "another"
        page.click("[aria-label='The message before']")
        page.wait_for_selector(".said >> text=one")
        assert page.locator(".versions").count() == 2
        assert violations(page) == []


def test_conversations_are_kept_in_the_browser_and_back_leads_to_them(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, _):
        say(page, "the first conversation")
        page.click("text=New chat")
        page.wait_for_selector(".start")
        say(page, "the second conversation")
        page.reload()
        page.wait_for_selector(".said >> text=the second conversation")
        assert page.locator(".chats li").count() == 2
        page.click(".chats li >> text=the first conversation")
        page.wait_for_selector(".said >> text=the first conversation")
        page.wait_for_timeout(50)
        page.go_back()
        page.wait_for_selector(".said >> text=the second conversation")
        page.hover(".chats li >> nth=0")
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator(".chats li >> text=Delete").first.click()
        page.wait_for_selector(".start")
        page.reload()
        page.wait_for_selector(".chats li")
        assert page.locator(".chats li").all_inner_texts() == ["the first conversation\nDelete"]


def test_what_is_kept_by_another_version_breaks_nothing(browser: Browser) -> None:
    with scripted(browser, "an answer") as (page, _):
        page.evaluate(
            """() => {
              localStorage.setItem("twostroke-chat:a", "{");
              localStorage.setItem("twostroke-chat:b", '{"id": "b", "nodes": 3}');
              localStorage.setItem("twostroke-chat:c", '{"id":"c","changed":1,"nodes":[null]}');
              localStorage.setItem("other", "x");
            }"""
        )
        page.reload()
        say(page, "the dog")
        assert page.locator(".chats li").count() == 1


def test_an_answer_leads_to_its_stations_tokens_gaps_and_lane(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}#/chat") as page:
        page.fill(".settings >> text=Most tokens", "40")
        say(page, "the quick brown fox")
        page.click(".about >> text=Why")
        page.wait_for_selector(".why >> text=Its first token came")
        page.wait_for_selector(
            r".why >> text=/[\d.]+.(ms|s) passed in the server before the engine had it \(.*: /"
        )
        page.wait_for_selector(
            ".why >> text=/for the first token \\([\\d.]+.(ms|s) of it on the way/"
        )
        for part, section in (("stations", "stations"), ("tokens", "text"), ("gaps", "gaps")):
            page.click(f".places >> text={part}")
            page.wait_for_selector(f".panel.{section}")
            address = page.evaluate("location.hash")
            assert address.startswith("#/request?") and "request=chatcmpl-" in address
            page.go_back()
            page.wait_for_selector(".about")
        page.click(".places >> text=lane")
        page.wait_for_selector("aside >> text=ended")
        assert "#/timeline?" in page.evaluate("location.hash")
        page.wait_for_selector("text=in view")


def test_an_error_says_what_to_change_and_can_be_tried_again(browser: Browser, live: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(f"{live}#/chat")
    page.fill(".settings >> text=Temperature", "-1")
    say(page, "the dog")
    assert "temperature" in page.locator(".answer [role=alert]").inner_text()
    page.fill(".settings >> text=Temperature", "")
    page.fill(".settings >> text=Most tokens", "4")
    page.click("text=Try again")
    page.wait_for_selector("text=2 of 2")
    page.wait_for_selector(SOME_ANSWER)
    assert page.locator(".answer [role=alert]").count() == 0
    context.close()


def test_a_server_with_keys_asks_for_one_first(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.gateway.test_usage import ALICE, gateway_with_keys

    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with tiny_engine() as engine, running_server(engine, gateway=gateway) as url:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.goto(url)
        page.fill("#key", ALICE)
        page.keyboard.press("Enter")
        page.fill(".settings >> text=Most tokens", "4")
        say(page, "the dog")
        assert " token" in page.locator(".about .num").inner_text()
        context.close()


def test_over_a_recording_it_says_what_to_start(browser: Browser) -> None:
    with showing("recording") as address, opened(browser, f"{address}#/chat") as page:
        page.wait_for_selector("text=it needs a live one")
        assert page.locator("nav >> text=Chat").count() == 0
        assert violations(page) == []
