"""Rules and dashboards ask for nothing that ``/metrics`` does not have; needs no Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.live import live_server, load
from tests.deploy.monitoring_files import (
    DASHBOARDS,
    METRIC,
    PROMETHEUS,
    all_expressions,
    panels,
    recorded,
    rules,
    vllm_dashboard,
)
from tests.gateway.test_usage import ADMIN, bearer
from tests.server.running import wait_until
from twostroke.core.config import ObservabilityConfig


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Of all series of a server that has answered."""
    with live_server(tmp_path_factory.mktemp("keys")) as url:

        def scrape() -> str:
            return httpx.get(url + "/metrics", headers=bearer(ADMIN)).text

        with load(url, clients=1):
            wait_until(lambda: 'finished_reason="length"} 0.0' not in scrape(), 30)
        return {s.name for f in text_string_to_metric_families(scrape()) for s in f.samples}


def test_every_name_is_exported(names: set[str]) -> None:
    asked = {name for expression in all_expressions() for name in METRIC.findall(expression)}
    assert len(asked) > 40
    assert asked - names - set(recorded()) == set()


def test_runbooks_name_what_is_there(names: set[str]) -> None:
    texts = [rule["annotations"]["runbook"] for rule in rules("alerts.yml")]
    asked = {name.rstrip(":") for text in texts for name in METRIC.findall(text)}
    assert len(asked) > 5
    assert asked - names - set(recorded()) == set()


def test_every_alert_says_what_to_do() -> None:
    for rule in rules("alerts.yml"):
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and len(rule["annotations"]["runbook"]) > 80


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_can_be_imported(path: Path) -> None:
    """Each panel has its own place and number, and every variable that it uses is one."""
    content = json.loads(path.read_text())
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in content["panels"]]
    assert len(set(places)) == len(places) == len({p["id"] for p in content["panels"]})
    known = {variable["name"] for variable in content["templating"]["list"]}
    used = {name for name in ("model_name", "tenant") if f"${name}" in "".join(panels(path))}
    assert used | {"DS_PROMETHEUS"} == known


def test_targets_of_the_template() -> None:
    config = ObservabilityConfig(target_file=str(PROMETHEUS / "targets.txt"))
    assert [target.text for target in config.targets()] == [
        "ttft=p95:0.3",
        "tpot=p50:0.025",
        "errors=0.001",
        "kv=p95:0.9",
        "queue=p95:25",
    ]


def test_the_dashboard_of_vllm_is_complete() -> None:
    assert len(set(vllm_dashboard())) == 27


def test_early_refusals_have_a_panel_of_their_own() -> None:
    """Targets can be met by refusing: whoever looks at them must see how many calls that took."""
    content = json.loads(next(path for path in DASHBOARDS if path.stem == "overview").read_text())
    (panel,) = [panel for panel in content["panels"] if panel["title"] == "Refused early"]
    (target,) = panel["targets"]
    assert panel["fieldConfig"]["defaults"]["unit"] == "percentunit"
    assert "twostroke:requests_refused_total" in target["expr"] and " / " in target["expr"]
