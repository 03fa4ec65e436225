"""How much of a call's prompt an engine's prefix cache holds, asked where the call arrives."""

from __future__ import annotations

from twostroke.core.errors import InvalidRequestError
from twostroke.core.generation_request import GenerationRequest, ResolvedRequest
from twostroke.core.request import Request
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.executor import ExecutorInfo
from twostroke.kv_cache.prefix_mirror import PrefixMirror


class CachedPrefixes:
    """Follows the cache of a loaded model. One thread applies changes, any thread asks.

    Attributes:
        mirror: What the cache holds, as of the engine's last report.
    """

    def __init__(self, info: ExecutorInfo, adapters: Adapters) -> None:
        self._adapters = adapters
        self.mirror = PrefixMirror(
            info.block_size, info.kv_groups, info.model_id, has_states=info.num_state_slots > 0
        )

    def as_request(self, call: GenerationRequest) -> Request | None:
        """What ``num_cached`` takes, which keeps the keys of its prompt: they take long to compute.

        ``None`` where the call names an adapter that is not there.
        """
        try:
            adapter = self._adapters.identity_of(call.adapter)
        except InvalidRequestError:
            return None
        length = len(call.prompt_token_ids)
        return Request(ResolvedRequest.of(call, adapter=adapter, max_total_tokens=length))

    def num_cached(self, request: Request | None) -> int:
        """Tokens of a prompt that the cache held; 0 of a call that will be refused."""
        if request is None or not request.token_ids:
            return 0
        try:
            return self.mirror.num_cached(request)
        except (OverflowError, TypeError):  # its tokens are not checked yet
            return 0
