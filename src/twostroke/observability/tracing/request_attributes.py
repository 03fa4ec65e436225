"""What the engine's timelines say of a request, as attributes of its span."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.observability.tracing import names
from twostroke.observability.tracing.timelines import Timeline
from twostroke.observability.tracing.trace import AttributeValue, RequestTrace


def engine_attributes(
    trace: RequestTrace, timelines: Sequence[Timeline]
) -> dict[str, AttributeValue]:
    """Parameters, token counts and latencies; latencies in seconds, those of the first sample.

    Prompts count once whatever ``n``, as in the API's usage. Of a call with more samples than are
    followed there are no token counts: sums over some of them would be taken for all.
    """
    first = timelines[0]
    attributes: dict[str, AttributeValue] = {
        names.VLLM_REQUEST_N: first.params.n,
        names.VLLM_NUM_SEQUENCES: trace.num_timelines,
        names.REQUEST_CHOICE_COUNT: first.params.n,
    }
    if trace.num_timelines <= len(timelines):
        attributes |= _totals(timelines)
    return attributes | _parameters(first) | _latencies(first)


def _totals(timelines: Sequence[Timeline]) -> dict[str, AttributeValue]:
    prompt_tokens = sum(t.num_prompt_tokens for t in timelines if t.index == 0)
    output_tokens = sum(t.num_output_tokens for t in timelines)
    reasons = [t.finish_reason.value for t in timelines if t.finish_reason is not None]
    return {
        names.RESPONSE_FINISH_REASONS: reasons,
        names.USAGE_INPUT_TOKENS: prompt_tokens,
        names.USAGE_OUTPUT_TOKENS: output_tokens,
        names.USAGE_CACHED_TOKENS: sum(t.num_cached_tokens for t in timelines if t.index == 0),
        names.VLLM_PROMPT_TOKENS: prompt_tokens,
        names.VLLM_COMPLETION_TOKENS: output_tokens,
        names.PREEMPTIONS: sum(t.num_preemptions for t in timelines),
    }


def _parameters(timeline: Timeline) -> dict[str, AttributeValue]:
    params = timeline.params
    attributes: dict[str, AttributeValue] = {
        names.REQUEST_TEMPERATURE: params.temperature,
        names.REQUEST_TOP_P: params.top_p,
        names.REQUEST_FREQUENCY_PENALTY: params.frequency_penalty,
        names.REQUEST_PRESENCE_PENALTY: params.presence_penalty,
    }
    for name, value in (
        (names.REQUEST_MAX_TOKENS, params.max_tokens),
        (names.REQUEST_TOP_K, params.top_k or None),
        # Attributes are signed; OpenTelemetry has no larger integers.
        (names.REQUEST_SEED, params.seed if -(2**63) <= (params.seed or 0) < 2**63 else None),
    ):
        if value is not None:
            attributes[name] = value
    return attributes


def _latencies(timeline: Timeline) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    scheduled, first, ended = timeline.first_scheduled, timeline.first_token, timeline.ended
    if scheduled is not None:
        attributes[names.VLLM_TIME_IN_QUEUE] = scheduled - timeline.arrival
        if first is not None:
            attributes[names.VLLM_TIME_IN_PREFILL] = first - scheduled
        if ended is not None:
            attributes[names.VLLM_TIME_IN_INFERENCE] = ended - scheduled
    if first is not None:
        attributes[names.VLLM_TIME_TO_FIRST_TOKEN] = first - timeline.arrival
        attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = first - timeline.arrival
        if ended is not None:
            attributes[names.VLLM_TIME_IN_DECODE] = ended - first
    if ended is not None:
        attributes[names.VLLM_E2E] = ended - timeline.arrival
    return attributes
