"""Fields of other servers that any body may bring: what is ignored, and what is taken for what.

Clients and frameworks send them to every server. Of those that change no guarantee a request is
answered as if it had none; the header ``x-ignored-fields`` and the request log name them. Those
that have a counterpart here are taken for it, on every route that has the counterpart. A field of
the route's own of the same name comes before both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_NO_STORE = "nothing is stored"
_NO_TIERS = "there is one tier"
_NO_IMAGES = "there are no images"
_CACHE_ALWAYS = "prefixes are cached as long as there is room"
_ONE_MODEL = "there is one model"
_NO_SLOTS = "requests are not bound to slots"
_IDS = "the server makes ids; the header X-Request-Id is echoed"
_IN_USAGE = "answers have their usage and /metrics the times"
_ONE_VERSION = "there is one version of each API"

# Name to the reason. Clients: Codex, OpenRouter's, LiteLLM, Anthropic's on Bedrock and Vertex,
# Open WebUI, Ollama's, llama.cpp's and SGLang's, beside OpenAI's and vLLM's own.
ADVISORY: Mapping[str, str] = {
    "anthropic_beta": _ONE_VERSION,
    "anthropic_version": _ONE_VERSION,
    "betas": _ONE_VERSION,
    "cache_prompt": _CACHE_ALWAYS,
    "chat_id": _NO_STORE,
    "client_metadata": _NO_STORE,
    "id_slot": _NO_SLOTS,
    "keep_alive": "the model stays loaded as long as the server runs",
    "length_penalty": "it is for beam search alone",
    "litellm_metadata": _NO_STORE,
    "media_io_kwargs": _NO_IMAGES,
    "metadata": _NO_STORE,
    "mm_processor_kwargs": _NO_IMAGES,
    "models": _ONE_MODEL,
    "prompt_cache_options": _CACHE_ALWAYS,
    "prompt_cache_retention": _CACHE_ALWAYS,
    "provider": _ONE_MODEL,
    "request_id": _IDS,
    "return_mm_kwargs": _NO_IMAGES,
    "return_token_offsets": "no answer has them",
    "rid": _IDS,
    "route": _ONE_MODEL,
    "service_tier": _NO_TIERS,
    "session_id": "requests are not bound to sessions",
    "spaces_between_special_tokens": "text is what the tokens spell",
    "store": _NO_STORE,
    "stream_interval": "each step is sent as it comes",
    "tags": _NO_STORE,
    "timings_per_token": _IN_USAGE,
    "trace": _NO_STORE,
    "usage": _IN_USAGE,
    "verbosity": "the model does not know it",
}


class Counterpart(NamedTuple):
    """What a foreign field is here.

    Attributes:
        path: The field, and where it is an object a key of it.
        schema: JSON schema of its values, for the API document alone.
        convert: Its value as the field here has it; what it does not know it gives back.
    """

    path: tuple[str, ...]
    schema: Mapping[str, Any]
    convert: Callable[[Any], Any] = lambda value: value


_ANY: Mapping[str, Any] = {}  # as any variable of a template
_TEXT, _NUMBER, _SWITCH = ({"type": kind} for kind in ("string", "number", "boolean"))
# llama.cpp's, SGLang's, Qwen's and Mistral's names.
COUNTERPARTS: Mapping[str, Counterpart] = {
    "ebnf": Counterpart(("structured_outputs", "grammar"), _TEXT),
    "enable_thinking": Counterpart(("chat_template_kwargs", "enable_thinking"), _ANY),
    "grammar": Counterpart(("structured_outputs", "grammar"), _TEXT),
    "json_schema": Counterpart(("structured_outputs", "json"), {"type": ["string", "object"]}),
    "no_stop_trim": Counterpart(("include_stop_str_in_output",), _SWITCH),
    "random_seed": Counterpart(("seed",), {"type": "integer"}),
    "regex": Counterpart(("structured_outputs", "regex"), _TEXT),
    "repeat_penalty": Counterpart(("repetition_penalty",), _NUMBER),
    "thinking_budget": Counterpart(("thinking_token_budget",), {"type": "integer"}),
}


def with_counterparts(
    data: Mapping[str, Any], counterparts: Mapping[str, Counterpart]
) -> tuple[dict[str, Any], str | None]:
    """The fields of an object, those that have a counterpart under its name.

    Returns:
        The fields, and the name of a foreign one that contradicts its counterpart, if one does.
    """
    fields = {name: value for name, value in data.items() if name not in counterparts}
    for name, value in data.items():
        if name not in counterparts or value is None:
            continue
        *parents, key = counterparts[name].path
        holder = fields
        for parent in parents:
            inner = holder.get(parent)
            if not (inner is None or isinstance(inner, dict)):
                return fields, name
            holder[parent] = holder = dict(inner or {})
        value = counterparts[name].convert(value)
        if holder.get(key) is not None and holder[key] != value:
            return fields, name
        holder[key] = value
    return fields, None
