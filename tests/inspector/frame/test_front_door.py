"""Protects: ``/`` leads browsers to the page, without a key, and answers programs as before."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.test_usage import ALICE, bearer, gateway_with_keys
from tests.inspector.showing import showing
from tests.server.running import running_server
from tests.server.scripted import ScriptedEngine

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_browsers_are_led_to_the_chat_and_programs_greeted() -> None:
    with running_server(ScriptedEngine()) as url:
        answer = httpx.get(url, headers=BROWSER)
        assert answer.status_code == 307
        assert answer.headers["location"] == "inspect/#/chat"
        assert answer.headers["vary"] == "accept"
        page = httpx.get(url, headers=BROWSER, follow_redirects=True)
        assert page.text.startswith("<!doctype html>")
        assert httpx.get(url).text == "Ollama is running"
        assert httpx.head(url, headers=BROWSER).status_code == 200
        assert httpx.post(url, headers=BROWSER).status_code == 405
        assert httpx.get(f"{url}/v1/models", headers=BROWSER).status_code == 200


def test_a_key_is_asked_of_programs_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with running_server(ScriptedEngine(), gateway=gateway) as url:
        assert httpx.get(url, headers=BROWSER).status_code == 307
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers=bearer(ALICE)).text == "Ollama is running"


def test_below_a_prefix_it_leads_below_it() -> None:
    with running_server(ScriptedEngine(), root_path="/llm") as url:
        for path in ("/llm/", "/"):  # a proxy may cut the prefix off
            answer = httpx.get(f"{url}{path}", headers=BROWSER)
            assert answer.headers["location"] == "inspect/#/chat"


def test_without_the_inspector_it_leads_nowhere() -> None:
    with running_server(ScriptedEngine(), inspector=False) as url:
        assert httpx.get(url, headers=BROWSER).text == "Ollama is running"


def test_over_a_recording_it_leads_to_the_page() -> None:
    with showing("recording") as address:
        root = address.removesuffix("inspect/")
        answer = httpx.get(root, headers=BROWSER)
        assert answer.headers["location"] == "inspect/"
