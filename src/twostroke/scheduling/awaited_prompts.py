"""Prompts that another engine is computing, and that come here next: what of them is there now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from twostroke.core.prefix_hit import KVOffer
from twostroke.core.request import Request, RequestStatus
from twostroke.kv_cache.manager import KVCacheManager

# A front end that forgets to say that one does not come costs this much memory.
MAX_AWAITED = 64
MAX_FAILED = 3  # loads of one, which may have been asked for before they were there
_MARK = "#ahead"


def ticket_of(call_id: str) -> str:
    """The id under which blocks are loaded before their request is here."""
    return call_id + _MARK


def room_to_spare(kv: KVCacheManager, requests: Iterable[Request]) -> int:
    """Blocks that those that are here do not need: none while one of them waits for its turn."""
    needed = 0
    for request in requests:
        if request.status is RequestStatus.WAITING:
            return 0
        if request.status is RequestStatus.RUNNING:
            needed += kv.num_blocks_missing(request)
    return max(0, kv.pool.num_free - needed)


@dataclass(slots=True)
class AwaitedPrompt:
    """One of them.

    Attributes:
        request: Stands for it: has its tokens, and the ticket as its id. It never runs.
        offer: Up to where its blocks are there, and in which tier.
        num_seen: Up to where they have been asked for, or were not worth it.
        num_failed: Loads that have failed.
    """

    request: Request
    offer: KVOffer
    num_seen: int = 0
    num_failed: int = 0


class AwaitedPrompts:
    """Keeps them by the id of their call; beyond ``MAX_AWAITED`` the oldest is forgotten.

    It holds no blocks: each load of a part of a prompt ends in the prefix cache, where the request
    finds it. So one that never comes leaves nothing behind.
    """

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, AwaitedPrompt] = OrderedDict()

    def note(self, call_id: str, request: Request | None, offer: KVOffer) -> None:
        """More of a prompt is there; without ``request`` it is one that was told before."""
        prompt = self._prompts.get(call_id)
        if request is not None and (prompt is None or prompt.offer.tier != offer.tier):
            self._prompts[call_id] = AwaitedPrompt(request, offer)
            if len(self._prompts) > MAX_AWAITED:
                self._prompts.popitem(last=False)
        elif prompt is not None and offer.num_tokens > prompt.offer.num_tokens:
            prompt.offer = offer

    def forget(self, call_id: str) -> None:
        """It has come, or does not come."""
        self._prompts.pop(call_id, None)

    def note_failure(self, ticket: str) -> None:
        """A load has failed, if it was one of these: try again, but not for ever."""
        prompt = self._prompts.get(ticket.removesuffix(_MARK))
        if prompt is None or not ticket.endswith(_MARK):
            return
        prompt.num_failed, prompt.num_seen = prompt.num_failed + 1, 0
        if prompt.num_failed >= MAX_FAILED:
            self.forget(ticket.removesuffix(_MARK))

    def clear(self) -> None:
        """None of them comes."""
        self._prompts.clear()

    @property
    def is_due(self) -> bool:
        """Whether there is something that was not asked for."""
        return any(each.num_seen < each.offer.num_tokens for each in self._prompts.values())

    def take_due(self, is_under_way: Callable[[str], bool]) -> list[AwaitedPrompt]:
        """Prompts with something to ask for, which is asked for now or never.

        Args:
            is_under_way: Whether a ticket's load has not ended; what is due of it waits.
        """
        due = [
            each
            for each in self._prompts.values()
            if each.num_seen < each.offer.num_tokens and not is_under_way(each.request.request_id)
        ]
        for each in due:
            each.num_seen = each.offer.num_tokens
        return due
