"""Protects: table, JSON and page say the same, and the page needs no network."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.planner.questions import planned
from twostroke.planner.plan import Plan
from twostroke.planner.rejections import rejections
from twostroke.planner.reports.json_text import plans_json
from twostroke.planner.reports.page import cheapest_of_devices, device_rows, plans_page
from twostroke.planner.reports.plots import Mark, bars, lines, scatter
from twostroke.planner.reports.tables import print_plans
from twostroke.planner.what_if import pareto, with_more_replicas

# What a program reads of each plan.
FIELDS = (
    "gpu",
    "memory_bandwidth",
    "tensor_parallel",
    "replicas",
    "ttft_p95",
    "tpot_p95",
    "cost_per_hour",
    "binding_constraint",
)


class Tags(HTMLParser):
    """Collects tags and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_json_has_the_fields_and_its_order() -> None:
    answer = planned()
    read = json.loads(plans_json(answer))
    assert all(field in plan for plan in read["plans"] for field in FIELDS)
    costs = [plan["cost_per_hour"] for plan in read["plans"]]
    assert costs == sorted(costs) and len(costs) > 2
    for plan in read["plans"]:
        low, high = plan["tpot_p95_interval"]
        assert 0 < low <= plan["tpot_p95"] <= high <= 0.04
        assert 0 <= plan["kv_occupancy"] <= 1 and plan["utilisation"] <= 1
        assert plan["marks"]["memory_bandwidth"] == "data sheet"
    assert read["memory"]["requests_of_mean_length"] > 0
    assert plans_json(answer) == plans_json(planned())


def test_the_table_names_what_the_json_names() -> None:
    answer = planned(output={"simulate": 1, "seeds": 1})
    stream = io.StringIO()
    print_plans(answer, stream)
    text = stream.getvalue()
    assert answer.best is not None
    for words in (
        f"1. {answer.best.plan.engine.describe()}",
        f"binding: {answer.best.binding.constraint}",
        "At the middle of the interval",
        "Other devices",
        "KV cache (",
        "What changes the answer",
        "twostroke serve",
        "3 runs",
    ):
        assert words in text, words


def test_a_question_without_an_answer_still_has_reasons() -> None:
    stream = io.StringIO()
    answer = planned(goals={"tpot": ("p95=0.1ms",)})
    print_plans(answer, stream)
    assert "No plan meets" in stream.getvalue() and "tokens/s short" in stream.getvalue()
    assert json.loads(plans_json(answer))["plans"] == []
    assert "No plan meets" in plans_page(answer)


def test_the_page_is_whole_by_itself() -> None:
    tags = Tags()
    tags.feed(plans_page(planned()))
    # Cost against the two targets, cost by device, and both latencies as traffic grows.
    assert tags.tags.count("svg") == 5 and tags.addresses == [] and "script" not in tags.tags


def test_the_page_has_a_column_for_each_device_that_can() -> None:
    answer = planned()
    header, rows = device_rows(answer)
    gpus = {plan.engine.gpu for plan in answer.found.plans}
    assert len(gpus) > 1 and set(header[1:]) == gpus
    assert {len(row) for row in rows} == {len(header)}
    costs = next(row for row in rows if row[0] == "$ an hour")[1:]
    cheapest = [
        min(plan.cost_per_hour for plan in answer.found.plans if plan.engine.gpu == gpu)
        for gpu in header[1:]
    ]
    assert cheapest == sorted(cheapest)
    assert [float(cost.replace(",", "")) for cost in costs] == pytest.approx(cheapest, abs=0.006)


def test_devices_of_two_pools_stand_in_the_order_of_their_replicas() -> None:
    answer = planned(limits={"pools": "apart", "gpus": "h100,l40s"})
    both = [plan for plan in cheapest_of_devices(answer) if len(plan.devices_by_gpu) == 2]
    assert both
    for plan in both:
        assert plan.prompts is not None
        assert plan.gpus_text == f"{plan.prompts.engine.gpu} and {plan.engine.gpu}"
        # The bar of such a plan is not that of either device.
        assert f">{plan.gpus_text}</text>" in plans_page(answer)
    for plan in answer.found.plans[:20]:
        assert not set(rejections(answer.search, [], answer.found, plan)) & {*plan.devices_by_gpu}


def test_what_simulations_refute_is_no_choice_on_the_page() -> None:
    answer = planned()
    refuted = replace(answer, shown=answer.shown[-1:])
    assert refuted.best is not None and answer.best is not None
    best = refuted.best.plan
    assert best.cost_per_hour > answer.best.plan.cost_per_hour
    plans = with_more_replicas(answer.search, answer.found, best.cost_per_hour)
    for plan in (*cheapest_of_devices(refuted), *plans):
        assert plan.cost_per_hour >= best.cost_per_hour - 0.005
    texts = rejections(answer.search, [best], answer.found, best)
    cheaper = answer.best.plan.engine.gpu
    assert cheaper != best.engine.gpu and "not in simulations" in texts[cheaper]


def test_no_plan_of_the_front_is_beaten_in_both() -> None:
    answer = planned()
    plans = with_more_replicas(answer.search, answer.found, 0.0)

    def time(plan: Plan) -> float:
        return plan.states["high"].tpot.at(95)

    best = pareto(plans, time)
    assert len(plans) > len(best) > 1
    for plan in best:
        assert not [
            other
            for other in plans
            if other.cost_per_hour <= plan.cost_per_hour and time(other) < 0.98 * time(plan)
        ]


def test_plots_place_values_by_their_size() -> None:
    assert scatter([], "x", "y") == bars([], "x") == lines({"low": []}, "x", "y", None) == ""
    low, high = (scatter([Mark(1, 1, "a<b"), Mark(x, 2, "c")], "x", "y") for x in (2, 4))
    assert low != high and "a&lt;b" in low
    assert "target" in lines({"high": [(0.5, 1.0), (1.0, 9.0)]}, "x", "y", 2.0)
    drawn = bars([("one", 1.0), ("two", 2.0)], "cost")
    assert drawn.count("<rect") == 2 and ">cost</text>" in drawn


@pytest.mark.parametrize("name", ["<script>", "a&b"])
def test_labels_are_escaped(name: str) -> None:
    assert name not in bars([(name, 1.0)], "cost")
