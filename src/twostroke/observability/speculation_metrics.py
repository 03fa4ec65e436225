"""How drafts fare, under vLLM's metric names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from twostroke.core.step import StepPlan, StepResult


class SpeculationMetrics:
    """Counts drafts by position; nothing is exposed by position before the first draft.

    Args:
        labels: Label names and values that all metrics of the engine have.
    """

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, list(labels), registry=registry).labels(**labels)

        self._drafts = counter(
            "vllm:spec_decode_num_drafts", "Times that drafts of a request were verified."
        )
        self._draft_tokens = counter(
            "vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified."
        )
        self._accepted = counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted."
        )
        by_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by position in the draft.",
            [*labels, "position"],
            registry=registry,
        )
        self._by_position = by_position
        self._labels = labels

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Count what a step verified."""
        for request_id, num_accepted in result.num_accepted_drafts.items():
            num_drafts = len(plan.scheduled[request_id].draft_token_ids)
            self._drafts.inc()
            self._draft_tokens.inc(num_drafts)
            if num_accepted:
                self._accepted.inc(num_accepted)
            for position in range(num_accepted):
                self._by_position.labels(**self._labels, position=str(position)).inc()
