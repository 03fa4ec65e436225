"""The seam between a model and its KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostroke.kernels.calls import AttentionCall

IntArray = NDArray[np.int64]


@dataclass(slots=True)
class AttentionMetadata:
    """Where the tokens of one step lie.

    Request ``r`` has rows ``query_start[r]`` to ``query_start[r + 1]``. Backends choose kernels by
    the arrays, so they are on the host; only ``slots`` is on the device.

    Attributes:
        query_start: ``[requests + 1]``, offsets into the step's tokens.
        context_lens: ``[requests]``, tokens in the cache once this step has written its own.
        block_table: ``[requests, blocks]``; entries beyond a request's own blocks are arbitrary
            (maybe other requests' blocks, maybe blocks that do not exist), so a backend must not
            read through them.
        slots: ``[tokens]`` int64 on the device, ``block * block_size + offset`` of each token. With
            groups ``[tokens, groups]``.
        groups: What the layers of each group see, where a model has several
            (``core.kv_groups``): table and slots differ. Then ``block_table`` here holds them all.
    """

    query_start: IntArray
    context_lens: IntArray
    block_table: NDArray[np.int32]
    slots: Tensor
    groups: Sequence[AttentionMetadata] = ()

    @property
    def query_lens(self) -> IntArray:
        """``[requests]``, tokens of each request in this step."""
        return np.diff(self.query_start)


class ScoreForm(NamedTuple):
    """How scores become weights, and where the values are.

    Attributes:
        scale: What scores are multiplied by.
        soft_cap: Their bound, ``cap * tanh(score / cap)``; ``None`` is none.
        latent_values: For latents, which every query head sees: how many elements of a row, the
            first ones, are the values. ``None``: values are rows of their own.
        sinks: Whether heads have scores without a value.
        chunked: Whether windows begin at multiples of their length, see ``AttentionSpec``.
    """

    scale: float
    soft_cap: float | None = None
    latent_values: int | None = None
    sinks: bool = False
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache, ``[blocks, ...]`` each.

    Attributes:
        window: How many of the latest tokens it shows; 0 is all.
        group: The index in ``KernelCache.groups`` of what it belongs to.
    """

    keys: Tensor
    values: Tensor
    window: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table and shapes of heads; the rest as in ``AttentionMetadata``.

    Attributes:
        call: Points to the step's tables; valid as long as what prepared it says.
        slots: ``[tokens]``.
    """

    call: AttentionCall
    slots: Tensor


@dataclass(slots=True)
class KernelCache:
    """A step's caches as the compiled pass takes them.

    Attributes:
        layers: By layer, of those that attend; one object for all steps of a backend.
    """

    groups: Sequence[LayerGroup]
    layers: Mapping[int, LayerCache]


class Attention(Protocol):
    """Attention of one step, called once per layer in order."""

    @property
    def kernel_cache(self) -> KernelCache | None:
        """What the compiled pass reads and writes, or ``None`` where it cannot run."""
        ...

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend causally.

        Args:
            layer: Index of the layer.
            query: ``[tokens, heads, key_dim]``, rotated.
            key: ``[tokens, kv_heads, key_dim]``, rotated. Of a latent layer its latents ``[tokens,
                1, width]``, and queries are as wide. ``None``: those of the layer whose cache it
                shares, which has been called before.
            value: ``[tokens, kv_heads, value_dim]``; ``None`` where there is no key, and in a
                latent layer, whose values are the first elements of its latents.
            sinks: Scores that each head's softmax takes in besides, float32 ``[heads]``; only where
                the layer's ``ScoreForm`` says so.

        Returns:
            ``[tokens, heads, value_dim]``, owned by the caller.
        """
        ...


class FixedTables(Protocol):
    """Tables of steps with one token of each request, which stay where they are in memory."""

    def attention(self, rows: int) -> Attention:
        """Attention over the first ``rows`` of them, as they are when it attends."""
        ...

    def fill(self, metadata: AttentionMetadata, rows: int) -> None:
        """Take in a step of at most ``rows`` requests; the other rows see and write nothing."""
        ...


class AttentionBackend(Protocol):
    """Makes the attention of each step.

    The backend reads and writes KV tensors that it was given when built and that the executor owns;
    it writes the slots in ``metadata.slots`` and no others. Every slot it may read is finite (the
    executor zeroes new tensors and the slots of failed requests): a masked NaN times zero is still
    NaN. What ``prepare`` returns is valid for one forward pass and until the metadata's arrays
    change.
    """

    def prepare(self, metadata: AttentionMetadata) -> Attention: ...

    def fixed_tables(self, rows: int, columns: int) -> FixedTables | None:
        """Tables of at most ``rows`` requests with ``columns`` blocks of each group of layers.

        ``None`` if its attention cannot be recorded and replayed.
        """
        ...
