"""Protects: the page Model and the arithmetic of KV in a real browser, on live and recorded steps.

Nothing is scripted: the engine is real, the steps and the measurement are its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.gateway.test_usage import ALICE, gateway_with_keys
from tests.inspector.browser import needs_browser, opened, violations
from tests.inspector.model.described import describe_tiny
from tests.inspector.showing import showing
from tests.server.running import running_server
from tests.server.tiny import tiny_engine
from twostroke.model_spec.kv_arithmetic import kv_arithmetic
from twostroke.model_spec.public_models import find_model, public_names
from twostroke.simulator.cost.shown_costs import facts_of_recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
HOSTILE = "<script>document.title='hacked'</script>\u202eabc\u202c" + "\U0001f600" * 40


@pytest.fixture(scope="module")
def live() -> Iterator[str]:
    """A server with four clients that ask again and again."""
    stop = threading.Event()
    with (
        tiny_engine(max_num_seqs=16) as engine,
        running_server(engine, describe_model=describe_tiny) as url,
    ):

        def ask(number: int) -> None:
            with httpx.Client(timeout=20) as client:
                while not stop.is_set():
                    body = {
                        "prompt": "the quick brown fox " * (1 + number),
                        "max_tokens": 60,
                        "ignore_eos": True,
                    }
                    client.post(url + "/v1/completions", json=body)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        yield f"{url}/inspect/"
        stop.set()
        for thread in threads:
            thread.join(timeout=30)


def put(page: Page, slider: str, key: str) -> None:
    page.get_by_label(slider).focus()
    page.keyboard.press(key)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_live_engine_is_shown_without_a_violation(
    browser: Browser, live: str, theme: str
) -> None:
    with opened(browser, f"{live}#/model", color_scheme=theme) as page:
        page.wait_for_selector(".tower")
        page.wait_for_selector(".roofline .said >> text=FLOPs a byte")
        page.wait_for_selector("tbody >> text=traffic")
        assert violations(page) == []
        page.goto(f"{live}#/kv")
        page.wait_for_selector(".kvsum table")
        page.locator(".kvsum summary", has_text="A conversation of").click()
        assert violations(page) == []


def test_it_fits_a_narrow_screen(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}#/model", width=390, height=844) as page:
        page.wait_for_selector(".tower")
        for name, selector in (("model", ".measure button"), ("kv", ".kvsum table")):
            page.goto(f"{live}#/{name}")
            page.wait_for_selector(selector)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert page.evaluate("document.querySelector('main').scrollWidth") <= 390
            assert violations(page) == []


def test_sliders_ask_the_cost_model(browser: Browser, live: str) -> None:
    with opened(browser, live) as page:
        page.wait_for_selector("nav")
        page.keyboard.press("g")
        page.keyboard.press("m")
        page.wait_for_selector("text=Decode of 16:")
        put(page, "requests at once", "Home")
        page.wait_for_selector("text=Decode of 1:")
        said = page.locator("p.said", has_text="Decode of 1:")
        before = said.inner_text()
        put(page, "context of each", "End")
        page.wait_for_selector("label:has-text('context of each') >> text=256 tokens")
        page.wait_for_function(
            "before => ![...document.querySelectorAll('p.said')]"
            ".some(said => said.innerText === before)",
            arg=before,
        )
        found = httpx.get(
            f"{live.replace('/inspect/', '/v1/inspect')}/model/paths?context=256&prompt=256"
        ).json()
        intensity = found["flops"][0] / found["bytes"][0]
        page.wait_for_selector(f"p.said >> text={intensity:.2f} FLOPs a byte")


def test_a_measurement_is_made_on_demand(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}#/model") as page:
        page.wait_for_selector("text=submits 24 requests")
        assert page.locator("tbody >> text=measurement").count() == 0
        page.click("text=Measure this machine")
        page.wait_for_selector("text=Measured at", timeout=60_000)
        page.wait_for_selector("tbody >> text=measurement")
        page.wait_for_selector("text=Measure again")
        assert violations(page) == []


def test_steps_and_layers_are_reached_by_keys(browser: Browser, live: str) -> None:
    with opened(browser, f"{live}#/model") as page:
        page.wait_for_selector(".roofline .said >> text=FLOPs a byte")
        page.keyboard.press("Space")
        page.wait_for_timeout(300)  # until it is drawn
        page.locator(".roofline canvas").focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("aside >> text=/Step [0-9]/")
        page.keyboard.press("ArrowLeft")
        page.locator("button.storey", has_text="embedding").press("Enter")
        page.wait_for_selector("caption >> text=embedding")


def test_a_recording_says_what_is_missing(browser: Browser) -> None:
    with showing("recording") as address, opened(browser, f"{address}#/model") as page:
        page.wait_for_selector("text=twostroke inspect FILE --model NAME")
        assert violations(page) == []
        page.goto(f"{address}#/kv")
        page.wait_for_selector("text=the model of this recording is not known")
        page.locator(".kvsum select").first.select_option("deepseek-v3")
        page.wait_for_selector("text=/61 x MLA/")
        put(page, "context", "Home")
        expected = kv_arithmetic(find_model("deepseek-v3"), 16).conversation_bytes / 1024
        page.wait_for_selector(f"b >> text={16 * expected / 1024:.1f}")


def test_a_simulation_has_its_model_and_follows_the_moment(browser: Browser) -> None:
    facts = replace(facts_of_recording("llama-3.1-8b", "h100"), measured=False, name=HOSTILE)
    with (
        showing("simulation", facts=facts) as address,
        opened(browser, f"{address}#/model?at=60") as page,
    ):
        page.wait_for_selector(".roofline .said >> text=Step 60")
        page.wait_for_selector("text=Simulated steps")
        page.wait_for_selector("text=Only a live engine can be measured")
        page.wait_for_selector("text=32 layers, 0 to 31")
        assert page.title() == "twostroke inspector"
        assert "\u202e" not in page.locator("main").inner_text()
        assert violations(page) == []
        page.keyboard.press(".")
        page.wait_for_selector(".roofline .said >> text=Step 61")


def test_a_key_of_one_tenant_sees_the_model_without_steps(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gateway = gateway_with_keys(tmp_path_factory.mktemp("keys"))
    with (
        tiny_engine() as engine,
        running_server(engine, gateway=gateway, describe_model=describe_tiny) as url,
    ):
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.goto(f"{url}/inspect/#/model")
        page.fill("#key", ALICE)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=an admin key shows them as dots")
        assert page.locator(".measure").count() == 0
        context.close()


def test_the_page_counts_as_the_command_does(browser: Browser) -> None:
    with showing("recording") as address, opened(browser, address) as page:
        page.wait_for_selector("nav")
        found = page.evaluate(
            """async () => {
              const { conversation } = await import("./pages/kv_arithmetic.js");
              const shown = await (await fetch("../v1/inspect/kv-models")).json();
              const sizes = {};
              for (const model of shown.models) {
                sizes[model.name] = ["bf16", "int4"].map((kept) =>
                  conversation(model.terms, 5000, kept, model.state_bytes));
              }
              return sizes;
            }"""
        )
    assert set(found) == set(public_names())
    for name, sizes in found.items():
        for size, format_ in zip(sizes, ("bf16", "int4"), strict=True):
            expected = kv_arithmetic(find_model(name), 5000, format_).conversation_bytes
            assert size == pytest.approx(expected)
