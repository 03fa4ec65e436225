"""A real Prometheus on loopback scrapes a real server: every expression gives data, an alert fires.

Intervals of rules and windows are those of ``in_short``; all else is what ``deploy/`` has.
"""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.live import live_server, load
from tests.deploy.monitoring_files import PROMETHEUS, all_expressions, in_short
from tests.gateway.test_usage import ADMIN
from tests.server.running import wait_until

SECONDS = 90  # after which something is wrong, also on a busy machine
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not on this machine: apt-get install prometheus",
)


def test_promtool_accepts_everything() -> None:
    for verb, kind, name in (
        ("check", "config", "prometheus"),
        ("check", "rules", "recording"),
        ("check", "rules", "alerts"),
        ("test", "rules", "alerts_test"),
    ):
        command = ["promtool", verb, kind, str(PROMETHEUS / f"{name}.yml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def broken() -> threading.Event:
    return threading.Event()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, broken: threading.Event) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("keys"), broken) as url:
        yield url


@pytest.fixture(scope="module")
def prometheus(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_prometheus(url, tmp_path_factory.mktemp("prometheus")) as address:
        yield address


@contextmanager
def running_prometheus(url: str, folder: Path) -> Iterator[str]:
    """The address of one that scrapes ``url`` once a second."""
    for name in ("recording.yml", "alerts.yml"):
        (folder / name).write_text(in_short((PROMETHEUS / name).read_text()))
    config: dict[str, Any] = yaml.safe_load(in_short((PROMETHEUS / "prometheus.yml").read_text()))
    job = config["scrape_configs"][0]
    job["static_configs"][0]["targets"] = [url.removeprefix("http://")]
    job["authorization"] = {"credentials": ADMIN}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--web.listen-address={address}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_ready(address), SECONDS)
        yield f"http://{address}/api/v1"
    finally:
        process.terminate()
        process.wait(30)


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def has_data(prometheus: str, expression: str) -> bool:
    """Whether it gives at least one number."""
    answer = httpx.get(prometheus + "/query", params={"query": in_short(expression)}).json()
    assert answer["status"] == "success", (expression, answer)
    return any(not math.isnan(float(series["value"][1])) for series in answer["data"]["result"])


def is_firing(prometheus: str, alert: str) -> bool:
    alerts = httpx.get(prometheus + "/alerts").json()["data"]["alerts"]
    return any(a["labels"]["alertname"] == alert and a["state"] == "firing" for a in alerts)


def test_every_expression_gives_data_under_load(url: str, prometheus: str) -> None:
    missing = all_expressions()

    def complete() -> bool:
        missing[:] = [expression for expression in missing if not has_data(prometheus, expression)]
        return not missing

    with load(url, clients=2):
        try:
            wait_until(complete, SECONDS)
        except AssertionError:
            pytest.fail("no data:\n" + "\n".join(missing))


def test_an_alert_fires_on_a_full_queue_and_resolves(url: str, prometheus: str) -> None:
    assert not is_firing(prometheus, "TwostrokeQueueGrows")
    with load(url, clients=40):  # of which four run
        wait_until(lambda: is_firing(prometheus, "TwostrokeQueueGrows"), SECONDS)
        # These requests all miss a target of a microsecond.
        wait_until(lambda: is_firing(prometheus, "TwostrokeTargetMissed"), SECONDS)
    wait_until(lambda: not is_firing(prometheus, "TwostrokeQueueGrows"), SECONDS)
    assert not is_firing(prometheus, "TwostrokeDown")


def test_an_alert_fires_on_failing_steps_and_resolves(
    url: str, prometheus: str, broken: threading.Event
) -> None:
    """The fault: a device of which every fifth step fails."""
    assert not is_firing(prometheus, "TwostrokeErrors")
    with load(url, clients=2, may_fail=True):
        broken.set()
        try:
            wait_until(lambda: is_firing(prometheus, "TwostrokeErrors"), SECONDS)
        finally:
            broken.clear()
        wait_until(lambda: not is_firing(prometheus, "TwostrokeErrors"), SECONDS)
