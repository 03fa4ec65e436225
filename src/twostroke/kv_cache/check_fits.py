"""Whether a request can run at all: it is refused before it is queued."""

from __future__ import annotations

from twostroke.core.errors import RequestTooLargeError, context_overflow
from twostroke.core.kv_groups import ONE_GROUP, KVGroups


def check_fits(
    max_total_tokens: int, num_blocks: int, block_size: int, groups: KVGroups = ONE_GROUP
) -> None:
    """Raise ``RequestTooLargeError``, with the numbers, for a request larger than the cache."""
    needed = groups.most_blocks(max_total_tokens, block_size)
    if needed > num_blocks:
        available = groups.longest_request(num_blocks, block_size) or 0
        raise RequestTooLargeError(
            context_overflow(
                available,
                f"the request needs {needed} KV blocks for {max_total_tokens} tokens, and the cache"
                f" has {num_blocks}",
            ),
            needed=max_total_tokens,
            available=available,
            param="max_tokens",
            hint="shorten the prompt, lower max_tokens, or start the server with a larger"
            " --kv-cache-memory",
        )
