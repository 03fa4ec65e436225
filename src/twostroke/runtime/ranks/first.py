"""The first rank's model, attention and KV tensors: each tells the others what it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twostroke.core.errors import EngineDeadError
from twostroke.layers.attention.base import (
    Attention,
    AttentionBackend,
    AttentionMetadata,
    FixedTables,
    KernelCache,
)
from twostroke.layers.compiled.decoder_pass import CompiledPass
from twostroke.layers.recurrent_state import NO_LAYER_STATES, LayerStates, StateShape
from twostroke.models.decoder import Decoder
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.ranks.messages import (
    CheckFinite,
    CopyBlocks,
    MakeLogits,
    RunPass,
    Tables,
    ZeroSlots,
    bytes_of,
)
from twostroke.runtime.ranks.processes import RankProcesses


@dataclass(frozen=True, slots=True)
class FirstAttention:
    """Implements ``Attention``: this rank's heads, and what the others need for theirs."""

    own: Attention
    metadata: AttentionMetadata

    @property
    def kernel_cache(self) -> KernelCache | None:
        return self.own.kernel_cache

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return self.own(layer, query, key, value, sinks)


class FirstBackend:
    """Implements ``AttentionBackend``."""

    def __init__(self, own: AttentionBackend) -> None:
        self._own = own

    def prepare(self, metadata: AttentionMetadata) -> FirstAttention:
        return FirstAttention(self._own.prepare(metadata), metadata)

    def fixed_tables(self, rows: int, columns: int) -> FixedTables | None:
        return None  # a recorded pass could not exchange anything with other processes


class FirstModel:
    """Implements ``LanguageModel``: runs each pass here and, at the same time, in all others.

    Args:
        own: This rank's share.
    """

    compiled_pass: CompiledPass | None = None
    asks_host = True

    def __init__(self, own: Decoder, processes: RankProcesses) -> None:
        self.own, self._processes = own, processes
        self.spec, self.device, self.dtype = own.spec, own.device, own.dtype
        self.kernels = own.kernels

    @property
    def weight_bytes(self) -> int:
        """Bytes of this rank's matrices; the others' are as many."""
        return self.own.weight_bytes

    @property
    def state_shapes(self) -> list[tuple[StateShape, ...]]:
        return self.own.state_shapes

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: Attention,
        rows: Tensor | None = None,
        states: LayerStates = NO_LAYER_STATES,
    ) -> Tensor:
        assert isinstance(attention, FirstAttention)
        with exchanging(self._processes):
            self._processes.tell(
                RunPass(
                    bytes_of(token_ids),
                    bytes_of(positions),
                    Tables.of(attention.metadata),
                    None if rows is None else bytes_of(rows),
                )
            )
            return self.own.forward(token_ids, positions, attention.own, rows, states)

    def logits(self, hidden: Tensor) -> Tensor:
        with exchanging(self._processes):
            self._processes.tell(MakeLogits(len(hidden)))
            hidden = self._processes.ranks.from_first(hidden.contiguous())
            return self.own.logits(hidden)


class FirstKV(KVTensors):
    """This rank's share of keys and values; what is done to it is done to the others'."""

    def __init__(self, processes: RankProcesses, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._processes = processes

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        if copies:
            self._processes.tell(CopyBlocks(copies))
        super().copy_blocks(copies)

    def are_finite(self, slots: Tensor) -> Tensor:
        with exchanging(self._processes):
            self._processes.tell(CheckFinite(bytes_of(slots), _groups_of(slots)))
            own = bool(super().are_finite(slots))
            return torch.tensor(self._processes.ranks.all_true(own))

    def zero_slots(self, slots: Tensor) -> None:
        self._processes.tell(ZeroSlots(bytes_of(slots), _groups_of(slots)))
        super().zero_slots(slots)


class OtherRanks(PassHook):
    """Ends the other ranks with the executor."""

    def __init__(self, processes: RankProcesses) -> None:
        self.processes = processes

    def close(self) -> None:
        self.processes.close()


@contextmanager
def exchanging(processes: RankProcesses) -> Iterator[None]:
    """Whatever fails in here ends the engine: other ranks wait in the middle of the same.

    Says which process is gone, if it fails for that.
    """
    try:
        yield
    except EngineDeadError as error:
        raise processes.part(processes.lost()) from error
    except BaseException as error:
        message = "a rank failed in the middle of a pass, and the others wait for it"
        failure = processes.part(EngineDeadError(message, hint="see the log; restart the server"))
        if isinstance(error, Exception):
            raise failure from error
        raise


def _groups_of(slots: Tensor) -> int:
    return slots.shape[1] if slots.dim() > 1 else 0
