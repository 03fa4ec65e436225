"""Scenarios: sweeps, what-ifs by flag, what does not fit, and reports that are the same each
time.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError, InsufficientMemoryError, ModelLoadError
from twostroke.core.step import Reason
from twostroke.model_spec.public_models import find_model
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.reports.earlier import read_report
from twostroke.simulator.reports.fields import WAITS, report_json, requests_csv, run_fields
from twostroke.simulator.reports.html import report_html
from twostroke.simulator.reports.options import OutputOptions
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.sweep import keep_fitting, parse_axis, sweep
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


def scenario(**workload: Any) -> Scenario:
    fields = {"num_requests": 30, "rate": 20.0, **workload}
    return Scenario(workload=SimulatedWorkloadOptions(**fields), targets={"ttft": 0.02})


def runs(*axes: str, **workload: Any) -> list[Run]:
    return [simulate(each) for each in sweep(scenario(**workload), axes)]


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("rate=1:16", "rate", ["1", "2", "4", "8", "16"]),
        ("rate=3:10", "rate", ["3", "6", "10"]),
        ("rate=1:2:3", "rate", ["1", "1.5", "2"]),
        ("--max-num-seqs=8,16", "max_num_seqs", ["8", "16"]),
        ("gpu=h100,l40s", "gpu", ["h100", "l40s"]),
    ],
)
def test_axes(text: str, name: str, values: list[str]) -> None:
    assert parse_axis(text) == (name, values)


@pytest.mark.parametrize(
    "text",
    ["rate", "rate=", "rate=4:1", "rate=a:b", "rate=1:2:1", "=1", "rate=1:inf", "rate=1:9:1e9"],
)
def test_broken_axes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep"):
        parse_axis(text)


def test_a_sweep_is_all_combinations_in_order() -> None:
    found = sweep(scenario(), ("gpu=h100,l40s", "enable_prefix_caching=true,false"))
    assert [each.label for each in found] == [
        "gpu=h100, enable_prefix_caching=true",
        "gpu=h100, enable_prefix_caching=false",
        "gpu=l40s, enable_prefix_caching=true",
        "gpu=l40s, enable_prefix_caching=false",
    ]
    assert (found[3].deployment.gpu, found[3].cache.enable_prefix_caching) == ("l40s", False)
    for axes in (("rate=1", "rate=2"), ("seed=1:1000:1000", "tp=1:1000:1000")):
        with pytest.raises(ConfigError, match=r"twice|1,000,000 runs"):
            sweep(scenario(), axes)
    assert sweep(scenario(), ("kv_cache_memory=1GiB,none",))[0].cache.kv_cache_memory == 2**30


@pytest.mark.parametrize(
    "text",
    [
        "nothing=1",
        "tp=x",
        "tp=inf",
        "tp=nan",
        "replicas=1e9",
        "enable_prefix_caching=2",
        "policy=best",
        "tp=0",
    ],
)
def test_sweeps_over_what_is_not_there_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        sweep(scenario(), (text,))


def p99(run: Run, name: str) -> float:
    return run.summary.latencies[name].percentiles[99]


def test_more_load_waits_longer_and_a_slower_device_is_slower() -> None:
    slow, fast = runs("rate=2,200", num_requests=60)
    assert p99(slow, "ttft") < p99(fast, "ttft")
    h100, l4 = runs("gpu=h100,l4")
    assert p99(h100, "tpot") < p99(l4, "tpot") / 3


def mean(run: Run, name: str) -> float:
    return run.summary.latencies[name].mean


@pytest.mark.parametrize(
    ("axis", "workload", "value"),
    [
        ("tp=4,1", {}, lambda run: mean(run, "tpot")),
        ("weight_dtype=fp8,bf16", {}, lambda run: mean(run, "tpot")),
        ("speculative_tokens=3,0", {"rate": 2.0}, lambda run: mean(run, "tpot")),
        ("acceptance=0.9,0.1", {"rate": 2.0}, lambda run: mean(run, "tpot")),
        (
            "batching=static,continuous",
            {"num_requests": 150, "rate": None},
            lambda run: run.summary.output_throughput,
        ),
        (
            "replicas=1,3",
            {"num_requests": 150, "rate": None},
            lambda run: run.summary.output_throughput,
        ),
        (
            "enable_prefix_caching=off,on",
            {"workload": "sessions"},
            lambda run: run.summary.prefix_hit_rate,
        ),
        (
            "kv_cache_memory=1GiB,4GiB",
            {"workload": "sessions"},
            lambda run: run.summary.prefix_hit_rate,
        ),
        ("kv_cache_dtype=bf16,fp8", {}, lambda run: run.deployment.info.num_blocks),
        (
            "max_prefill_chunk=256,none",
            {"workload": "random", "input_len": 4000, "output_len": 50},
            lambda run: p99(run, "itl"),
        ),
        (
            "max_num_batched_tokens=512,8192",
            {"workload": "random", "input_len": 4000, "output_len": 50},
            lambda run: p99(run, "itl"),
        ),
        (
            "router=round-robin,prefix-affinity",
            {"workload": "sessions"},
            lambda run: run.summary.prefix_hit_rate,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ifs_by_flag_do_what_they_say(
    axis: str, workload: dict[str, Any], value: Callable[[Run], float]
) -> None:
    """The first value of each flag makes the measure smaller than the second."""
    asked = scenario(**workload)
    if axis.startswith("acceptance"):
        asked = replace(asked, deployment=replace(asked.deployment, speculative_tokens=3))
    if axis.startswith("router"):
        asked = replace(asked, deployment=replace(asked.deployment, replicas=3))
    first, second = (simulate(each) for each in sweep(asked, (axis,)))
    assert value(first) < value(second)


def test_priority_lets_the_urgent_go_first() -> None:
    """Policies come from the engine; a workload's priorities reach them, and the report tells them
    apart.
    """
    crowd: dict[str, Any] = {"num_requests": 150, "rate": None, "priorities": 2}
    fcfs, priority = (
        simulate(each) for each in sweep(scenario(**crowd), ("policy=fcfs,priority",))
    )
    assert priority.summary.ttft_by_priority[0].mean < 0.8 * fcfs.summary.ttft_by_priority[0].mean
    assert priority.summary.ttft_by_priority[1].mean > fcfs.summary.ttft_by_priority[1].mean
    assert set(run_fields(priority)["by_priority"]) == {"0", "1"}
    without = [
        simulate(each) for each in sweep(scenario(num_requests=150), ("policy=fcfs,priority",))
    ]
    assert without[0].summary == without[1].summary  # then both are the order of arrival


def test_fair_scheduling_is_a_what_if_between_tenants() -> None:
    """One key floods; under fcfs the others wait behind it, under fair they do not."""
    crowd: dict[str, Any] = {"num_requests": 150, "rate": None, "tenants": 4}
    fcfs, fair = (simulate(each) for each in sweep(scenario(**crowd), ("policy=fcfs,fair",)))
    counts = Counter(request.tenant for request in fair.result.requests)
    assert counts[0] > counts[1] > counts[3] > 0
    assert fair.summary.ttft_by_tenant[3].mean < 0.7 * fcfs.summary.ttft_by_tenant[3].mean
    assert set(run_fields(fair)["by_tenant"]) == {"0", "1", "2", "3"}
    assert simulate(scenario(tenants=1)).summary.ttft_by_tenant == {}


@pytest.mark.parametrize(
    ("scheduler", "cache", "workload", "reason"),
    [
        ({"max_num_seqs": 4}, {}, {"rate": None, "num_requests": 60}, "max_num_seqs"),
        ({}, {"kv_cache_memory": 2**28}, {"rate": None, "num_requests": 60}, "no_free_block"),
        (
            {"max_num_batched_tokens": 64},
            {},
            {"workload": "random", "rate": None, "output_len": 2},
            "token_budget",
        ),
        (
            {"batching": "static", "max_num_seqs": 4},
            {},
            {"rate": None, "num_requests": 60},
            "batch_running",
        ),
        ({}, {}, {"rate": 2.0}, "step"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("jump", [True, False])
def test_the_report_names_what_requests_wait_for(
    scheduler: dict[str, Any],
    cache: dict[str, Any],
    workload: dict[str, Any],
    reason: str,
    jump: bool,
) -> None:
    """And so which flag, or how much memory, would shorten the queue."""
    asked = replace(
        scenario(**workload), scheduler=SchedulerConfig(**scheduler), cache=CacheConfig(**cache)
    )
    found = simulate(asked, jump=jump).summary.waiting_for
    assert max(found, key=found.__getitem__) == reason and found[reason] > 0.6
    assert sum(found.values()) == pytest.approx(1)


def test_every_reason_has_words() -> None:
    assert set(WAITS) == {"step", *(reason.value for reason in Reason)}


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(
        InsufficientMemoryError, match=r"65\.\d GB too much.*141\.1 GB are weights"
    ) as caught:
        deploy(DeploymentOptions(model="llama-3.1-70b"), CacheConfig(), SchedulerConfig())
    assert "--tp 4" in str(caught.value.hint)
    with pytest.raises(InsufficientMemoryError, match="--kv-cache-memory") as caught:
        deploy(DeploymentOptions(), CacheConfig(kv_cache_memory=2**37), SchedulerConfig())
    assert "--kv-cache-memory 5" in str(caught.value.hint) and "MiB" in str(caught.value.hint)
    with pytest.raises(InsufficientMemoryError, match="one request") as caught:
        deploy(
            DeploymentOptions(max_model_len=100_000),
            CacheConfig(kv_cache_memory=2**30),
            SchedulerConfig(),
        )
    assert "--max-model-len 8192" in str(caught.value.hint)
    small = deploy(DeploymentOptions(), CacheConfig(kv_cache_memory=2**30), SchedulerConfig())
    assert small.max_model_len == 8192
    assert any("8192" in note for note in small.notes)


def test_notes_say_what_one_might_not_expect() -> None:
    def notes(**options: Any) -> str:
        return " ".join(
            deploy(DeploymentOptions(**options), CacheConfig(), SchedulerConfig()).notes
        )

    assert notes() == ""
    assert "no fp8 arithmetic: products run in bf16" in notes(gpu="a100", weight_dtype="fp8")
    assert "16 talk over the network, 50 GB/s" in notes(tp=16, model="llama-3.1-70b")


def test_a_processor_shares_its_memory_with_others() -> None:
    """As the live engine does: a part of it, and no more than its requests can use."""

    def tokens(share: float, seqs: int = 1000) -> int:
        cache = CacheConfig(cpu_memory_utilization=share)
        info = deploy(
            DeploymentOptions(model="llama-3.2-1b", gpu="cpu"),
            cache,
            SchedulerConfig(max_num_seqs=seqs),
        ).info
        return info.num_blocks * info.block_size

    assert tokens(0.5) == pytest.approx(2 * tokens(0.25), rel=0.01)
    assert tokens(1.0, seqs=1) == 131072


def test_models_are_found_by_name_hub_id_and_folder(tmp_path: Path) -> None:
    by_name = find_model("llama-3.1-8b")
    assert by_name == find_model("meta-llama/Llama-3.1-8B-Instruct")
    assert by_name.num_parameters == 8_030_261_248
    assert find_model("pilot").num_layers > 0
    with pytest.raises(ModelLoadError, match="unknown model") as caught:
        find_model("llama-3.1-9b")
    assert "did you mean llama-3.1-8b" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gpt-oss-120b", 116_829_156_672),
    ],
)
def test_public_models_have_their_published_size(name: str, parameters: int) -> None:
    assert find_model(name).num_parameters == parameters


def test_the_same_seed_gives_the_same_bytes() -> None:
    def report(jump: bool) -> tuple[str, str, str]:
        done = [
            simulate(each, jump=jump, interval=True) for each in sweep(scenario(), ("rate=5,50",))
        ]
        fields = [run_fields(run) for run in done]
        return report_json(fields), report_html(fields), requests_csv(done)

    assert report(True) == report(True) == report(False)


def test_interval_encloses_the_point() -> None:
    run = simulate(scenario(), interval=True)
    low, high = (run.interval[end].latencies["tpot"].mean for end in ("low", "high"))
    assert low < run.summary.latencies["tpot"].mean < high


def test_files_hold_what_happened(tmp_path: Path) -> None:
    done = runs("rate=5,50")
    path = tmp_path / "earlier.json"
    path.write_text(report_json([run_fields(run) for run in done]))
    again = read_report(path)
    assert [run["label"] for run in again] == ["earlier: rate=5", "earlier: rate=50"]
    assert again[0]["completed"] == 30
    assert len(again[0]["timeline"]["time"]) == 300
    assert json.loads(path.read_text())["runs"][1]["setting"]["rate"] == 50
    rows = list(csv.DictReader(io.StringIO(requests_csv(done))))
    assert len(rows) == 60
    good = sum(int(row["good"]) for row in rows if row["run"] == "rate=5")
    assert done[0].summary.goodput == pytest.approx(good / done[0].summary.duration)


@pytest.mark.parametrize(
    "change",
    [
        {"median_ttft_ms": "x"},
        {"mfu": None},
        {"setting": {}},
        {"hardware": {"name": "h100"}},
        {"timeline": {}},
        {
            "timeline": {
                "time": [1.0],
                "running": [],
                "waiting": [],
                "kv": [],
                "tokens_per_second": [],
            }
        },
        {"interval": {"low": {}}},
        {"interval": {"low": {}, "high": {}}},
        {"waiting_for": {"godot": 1.0}},
        {"by_tenant": {"0": {}}},
        {"label": 5},
    ],
    ids=str,
)
def test_a_report_that_could_not_be_shown_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    """Before the simulation that it is to stand beside, and in one line."""
    path = tmp_path / "earlier.json"
    path.write_text(report_json([{**run_fields(simulate(scenario(num_requests=2))), **change}]))
    with pytest.raises(ConfigError, match="no report"):
        read_report(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"runs": [5]}'])
def test_what_is_no_report_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no report"):
        read_report(path)


def test_a_sweep_leaves_out_what_does_not_fit_and_refuses_what_does_not_exist() -> None:
    asked = replace(scenario(), deployment=DeploymentOptions(model="llama-3.1-70b"))
    fit, left_out = keep_fitting(sweep(asked, ("tp=1,2,4",)))
    assert [each.label for each in fit] == ["tp=2", "tp=4"]
    assert (
        len(left_out) == 1
        and left_out[0].startswith("tp=1 is left out")
        and "GB too much" in left_out[0]
    )
    with pytest.raises(InsufficientMemoryError):
        keep_fitting(sweep(asked, ("gpu=l4,a10",)))
    with pytest.raises(ConfigError, match="unknown device"):
        keep_fitting(sweep(asked, ("gpu=l4,h10o",)))


class Page(HTMLParser):
    """Collects what a page would load, and how many charts it has."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.charts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.charts += tag == "svg"
        self.loads += [str(value) for name, value in attrs if name in ("src", "href")]


@pytest.mark.parametrize("axes", [(), ("rate=5,50",), ("gpu=h100,l40s",)])
def test_the_page_has_plots_and_needs_no_network(axes: tuple[str, ...]) -> None:
    text = report_html([run_fields(run) for run in runs(*axes)])
    page = Page()
    page.feed(text)
    assert page.charts >= 4
    assert page.loads == []
    assert "@import" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(chart)
        assert "nan" not in chart


def points(page: str, chart: str) -> list[list[float]]:
    """Where the points of each line of a chart stand, from left to right as drawn."""
    part = page[page.index(f"<figcaption>{chart}") :]
    lines = re.findall(
        r'<path class="line.*?(?=<path class="line|</svg>)',
        part[: part.index("</figure>")],
        re.DOTALL,
    )
    return [[float(x) for x in re.findall(r'cx="([\d.]+)"', line)] for line in lines]


def test_an_earlier_sweep_is_a_line_of_its_own(tmp_path: Path) -> None:
    """Two sweeps over the same rates must not become one line that goes to and fro."""
    (tmp_path / "before.json").write_text(
        report_json([run_fields(run) for run in runs("rate=5,50")])
    )
    now = [run_fields(run) for run in runs("rate=5,20,50")]
    page = report_html([*read_report(tmp_path / "before.json"), *now])
    lines = points(page, "TTFT against load")
    assert sorted(map(len, lines)) == [2, 2, 3, 3]
    assert all(line == sorted(line) for line in lines)
    assert "before median" in page


def test_in_a_closed_loop_the_load_is_its_concurrency() -> None:
    closed = runs("concurrency=2,8,16", rate=None, arrivals="closed")
    page = report_html([run_fields(run) for run in closed])
    assert list(map(len, points(page, "TTFT against load"))) == [3, 3]
    assert "clients" in page


def test_an_empty_run_is_reported_too() -> None:
    """Ctrl-C before anything has ended, or nothing that fits."""
    run = simulate(scenario(workload="random", input_len=200_000, rate=None))
    assert (run.summary.completed, run.summary.refused) == (0, 30)
    assert report_json([run_fields(run)])
    assert report_html([run_fields(run)])


def test_targets() -> None:
    assert OutputOptions(slo="ttft=0.5, tpot=0.05").targets() == {"ttft": 0.5, "tpot": 0.05}
    for text in ("ttft", "ttft=0", "itl=1", "ttft=x"):
        with pytest.raises(ConfigError, match="--slo"):
            OutputOptions(slo=text)


def test_a_page_of_several_runs_names_what_they_share_and_spreads_wide_values() -> None:
    """No single run's device or rate in the heading; percentiles in one colour; small values still
    to be seen.
    """
    page = report_html(
        [run_fields(run) for run in runs("rate=2,200", "gpu=h100,l4", num_requests=60)]
    )
    heading = page[page.index("<h1>") : page.index("</h1>")]
    assert "H100" in heading and "L4" in heading and "at 200 requests/s" not in page
    chart = page[page.index("TTFT against load") :]
    chart = chart[: chart.index("</figure>")]
    assert chart.count('class="line c0') == chart.count('class="line c1') == 2 and "dashed" in chart
    # A logarithmic axis: as far from 50 to 500 as from 100 to 1000.
    y = {
        int(mark): float(place)
        for place, mark in re.findall(r'y="([\d.]+)" text-anchor="end">(\d+)<', chart)
    }
    assert y[50] - y[500] == pytest.approx(y[100] - y[1000], abs=0.2)
