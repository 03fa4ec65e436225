"""Protects: the metrics of several engines are one exposition that Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from twostroke.engine.clients.exposition import merge_expositions
from twostroke.observability.metrics import EngineMetrics


def test_each_family_is_described_once_and_has_the_series_of_all() -> None:
    texts = [EngineMetrics(name).render()[0] for name in ("a", "b")]
    merged = merge_expositions(texts)
    lines = merged.splitlines()
    described = [line.split()[2] for line in lines if line.startswith(b"# TYPE")]
    assert len(described) == len(set(described))
    families = {family.name: family for family in text_string_to_metric_families(merged.decode())}
    alone = {each.name for each in text_string_to_metric_families(texts[0].decode())}
    assert set(families) == alone
    for family in families.values():
        names = [sample.labels["model_name"] for sample in family.samples]
        assert names.count("a") == names.count("b"), family.name
    assert len(lines) == sum(len(t.splitlines()) for t in texts) - sum(
        line.startswith(b"#") for line in texts[1].splitlines()
    )
