"""Fields that are accepted and ignored: what changes no guarantee about the answer.

Clients and frameworks send them to every server. A request that has some is answered as if it had
none of them; the header ``x-ignored-fields`` and the request log name them.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_STORE = "nothing is stored"
_NO_TIERS = "there is one tier"
_NO_IMAGES = "there are no images"
_CACHE_ALWAYS = "prefixes are cached as long as there is room"

# Field name to the reason. Of `tools`, `response_format` and the like only empty values are taken.
IGNORED: Mapping[str, str] = {
    "length_penalty": "it is for beam search alone",
    "media_io_kwargs": _NO_IMAGES,
    "metadata": _NO_STORE,
    "mm_processor_kwargs": _NO_IMAGES,
    "prompt_cache_options": _CACHE_ALWAYS,
    "prompt_cache_retention": _CACHE_ALWAYS,
    "request_id": "the server makes ids; the header X-Request-Id is echoed",
    "return_mm_kwargs": _NO_IMAGES,
    "return_token_offsets": "no answer has them",
    "service_tier": _NO_TIERS,
    "session_id": "requests are not bound to sessions",
    "spaces_between_special_tokens": "text is what the tokens spell",
    "store": _NO_STORE,
    "stream_interval": "each step is sent as it comes",
    "verbosity": "the model does not know it",
}
