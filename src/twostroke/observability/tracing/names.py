"""Names of spans, events and attributes: OpenTelemetry's, vLLM's where it has them, and ours.

Constants of our own, since the conventions for generative AI are still in development and their
Python package renames what it likes between versions. Source: OpenTelemetry's semantic conventions,
gen-ai/gen-ai-spans and http/http-spans; vLLM's ``vllm/tracing.py``. No text of a prompt or an
answer is ever an attribute.
"""

from __future__ import annotations

from typing import Final

# OpenTelemetry, generative AI.
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

# OpenTelemetry, HTTP and errors.
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_REQUEST_ID: Final = "http.response.header.x-request-id"
URL_PATH: Final = "url.path"
ERROR_TYPE: Final = "error.type"

# vLLM.
VLLM_REQUEST_ID: Final = "gen_ai.request.id"
VLLM_REQUEST_N: Final = "gen_ai.request.n"
VLLM_NUM_SEQUENCES: Final = "gen_ai.usage.num_sequences"
VLLM_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
VLLM_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
VLLM_TIME_IN_QUEUE: Final = "gen_ai.latency.time_in_queue"
VLLM_TIME_TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"
VLLM_E2E: Final = "gen_ai.latency.e2e"
VLLM_TIME_IN_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
VLLM_TIME_IN_DECODE: Final = "gen_ai.latency.time_in_model_decode"
VLLM_TIME_IN_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"

# Ours.
TENANT: Final = "twostroke.tenant"
STEP: Final = "twostroke.step"
CHUNK_START: Final = "twostroke.chunk.start"
CHUNK_TOKENS: Final = "twostroke.chunk.num_tokens"
NUM_RUNNING: Final = "twostroke.num_running"
OUTPUT_TOKENS: Final = "twostroke.num_output_tokens"
PREEMPTIONS: Final = "twostroke.num_preemptions"
BY: Final = "twostroke.by"
REASON: Final = "twostroke.reason"
MESSAGE: Final = "twostroke.message"
ENGINE: Final = "twostroke.engine"
ATTEMPT: Final = "twostroke.attempt"
OUTCOME: Final = "twostroke.outcome"
ROUTE_REASON: Final = "twostroke.route.reason"
ROUTE_PREFIX_TOKENS: Final = "twostroke.route.prefix_tokens"
ROUTE_LOADS: Final = "twostroke.route.loads"
NUM_TOKENS: Final = "twostroke.num_tokens"
CONTEXT_UNIT: Final = "twostroke.context.unit"
# What a prompt was put together of, and what was left out, by the fields of ``ContextUse``.
CONTEXT_PARTS: Final = {
    field: f"twostroke.context.{field}"
    for field in (
        *("system", "documents", "history", "message", "template", "budget"),
        *("cut_documents", "cut_history", "cut_turns"),
    )
}

# Spans below the request's, in the order in which they come.
READ, CONTEXT, TOKENISE, PREPARE = "read", "context", "tokenise", "prepare"
ROUTE, ENGINE_PART = "route", "engine"
QUEUE, PREFILL, DECODE = "queue", "prefill", "decode"
STREAM, ANSWER = "stream", "answer"

# Events.
RECEIVED, AUTHENTICATED, LIMITED = "received", "authenticated", "limited"
TOKENISED, TRUNCATED = "tokenised", "truncated"
HELD_BACK, FIRST_TOKEN, PROGRESS = "held_back", "first_token", "progress"
PREEMPTED, ABORTED, ERROR = "preempted", "aborted", "error"
ENGINE_LOST = "engine_lost"

# Why a request leaves an engine: as a reason of its next route.
FAILOVER, HANDED_ON = "failover", "handed_on"
