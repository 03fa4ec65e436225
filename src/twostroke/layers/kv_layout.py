"""How one layer's keys, or its values, lie in the blocks of the KV cache.

A token's elements are converted, or rounded to few bits, once: when they are written. Every reader
sees what was written, the step that wrote it included. So no output depends on how a prompt was cut
into chunks, on the batch, or on what was preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.core.errors import ConfigError
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.layers.scaled_rows import GROUP, decode_rows, encode_rows, groups_of, row_bytes

PLAIN_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}


class KVLayout(Protocol):
    """The layout of one tensor ``[blocks, ...]``: of a layer's keys, its values or its latents.

    A block is contiguous and holds everything that belongs to its tokens, scales included: copying
    ``cache[block]`` moves all of it. Between two blocks there may be room for other layers' ones.

    Attributes:
        name: The name that ``--kv-cache-dtype`` gives it.
        dtype: Type of the tensor's elements.
        read_dtype: What readers get: the model's precision.
        block_shape: Shape of one block.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def read_dtype(self) -> torch.dtype: ...
    @property
    def block_size(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def block_shape(self) -> tuple[int, ...]: ...

    def write(self, cache: Tensor, slots: Tensor, rows: Tensor) -> None:
        """Put ``rows`` [tokens, kv_heads, head_dim] into ``slots`` [tokens], int64."""
        ...

    def read(self, cache: Tensor, blocks: Tensor) -> Tensor:
        """``blocks`` [blocks] as ``[blocks, block_size, kv_heads, head_dim]``."""
        ...

    def as_read(self, rows: Tensor) -> Tensor:
        """``rows`` as a reader sees them once they are written; of the same shape and dtype."""
        ...

    def zero(self, cache: Tensor, slots: Tensor) -> None:
        """Make ``slots`` read as zeros."""
        ...

    def probe(self, cache: Tensor, slots: Tensor) -> Tensor:
        """A float32 scalar that is finite unless ``slots`` hold NaN or infinity."""
        ...


def make_layout(
    name: KVCacheDtype, model_dtype: torch.dtype, block_size: int, kv_heads: int, head_dim: int
) -> KVLayout:
    """The layout that ``--kv-cache-dtype`` names; ``auto`` keeps the model's precision.

    Raises:
        ConfigError: The heads have no whole groups.
    """
    sizes = (model_dtype, block_size, kv_heads, head_dim)
    if name == "auto":
        return PlainLayout(format_name(name, model_dtype), model_dtype, *sizes)
    if name == "int8":
        return ScaledLayout(name, 8, *sizes)
    if name == "int4":
        if head_dim % GROUP:
            raise ConfigError(
                f"--kv-cache-dtype int4 needs heads of a multiple of {GROUP} elements; this model's"
                f" have {head_dim}",
                hint="use --kv-cache-dtype int8 or fp8",
            )
        return ScaledLayout(name, 4, *sizes)
    return PlainLayout(name, PLAIN_DTYPES[name], *sizes)


def plain_layout(cache: Tensor) -> PlainLayout:
    """The layout of ``[blocks, block_size, kv_heads, head_dim]`` in the model's precision."""
    name = format_name("auto", cache.dtype)
    return PlainLayout(name, cache.dtype, cache.dtype, *cache.shape[1:])


def format_name(name: KVCacheDtype, model_dtype: torch.dtype) -> str:
    """The format that ``--kv-cache-dtype`` comes to."""
    return str(model_dtype).removeprefix("torch.") if name == "auto" else name


@dataclass(frozen=True)
class PlainLayout:
    """One number per element, ``[block_size, kv_heads, head_dim]`` in a block."""

    name: str
    dtype: torch.dtype
    read_dtype: torch.dtype
    block_size: int
    kv_heads: int
    head_dim: int

    @property
    def block_shape(self) -> tuple[int, ...]:
        return self.block_size, self.kv_heads, self.head_dim

    @property
    def _is_exact(self) -> bool:
        return self.dtype is self.read_dtype

    def write(self, cache: Tensor, slots: Tensor, rows: Tensor) -> None:
        bits = self._bits(self._converted(rows))
        if cache.is_contiguous():
            self._slots(cache).index_copy_(0, slots, bits)
        else:
            self._bits(cache)[slots // self.block_size, slots % self.block_size] = bits

    def read(self, cache: Tensor, blocks: Tensor) -> Tensor:
        flat = self._bits(cache).flatten(1)  # [blocks, elements of a block]
        if self._is_exact:  # embedding() is the fastest row gather that PyTorch has on a CPU
            return F.embedding(blocks, flat).view(-1, *self.block_shape)
        gathered = flat.index_select(0, blocks).view(self.dtype)
        return gathered.view(-1, *self.block_shape).to(self.read_dtype)

    def as_read(self, rows: Tensor) -> Tensor:
        return rows if self._is_exact else self._converted(rows).to(self.read_dtype)

    def zero(self, cache: Tensor, slots: Tensor) -> None:
        self._bits(cache)[slots // self.block_size, slots % self.block_size] = 0

    def probe(self, cache: Tensor, slots: Tensor) -> Tensor:
        if cache.is_contiguous():
            rows = self._slots(cache).flatten(1).index_select(0, slots).view(self.dtype)
        else:
            bits = self._bits(cache)[slots // self.block_size, slots % self.block_size]
            rows = bits.view(self.dtype)
        return rows.float().sum() if self.dtype.itemsize == 1 else rows.sum(dtype=torch.float32)

    def _slots(self, cache: Tensor) -> Tensor:
        return self._bits(cache).view(-1, self.kv_heads, self.head_dim)

    def _bits(self, rows: Tensor) -> Tensor:
        """PyTorch indexes no 8-bit floats, but their bytes."""
        return rows.view(torch.uint8) if self.dtype.itemsize == 1 else rows

    def _converted(self, rows: Tensor) -> Tensor:
        if self._is_exact:
            return rows
        if self.dtype.itemsize == 4 or self.dtype is torch.bfloat16:
            return rows.to(self.dtype)
        # What is too large for the format becomes its largest number; infinity stays an error.
        largest = torch.finfo(self.dtype).max
        bounded = rows.float().clamp(-largest, largest)
        return torch.where(rows.isfinite(), bounded, torch.nan).to(self.dtype)


@dataclass(frozen=True)
class ScaledLayout:
    """Integers of 8 or 4 bits, and after a block's integers their scales in bfloat16.

    A block is ``[block_size, kv_heads, row]`` bytes of integers and then
    ``[kv_heads, groups, block_size]`` scales: rows stay aligned, and the scales of consecutive
    tokens lie side by side. ``scaled_rows`` says what a row is.
    """

    name: str
    bits: int
    read_dtype: torch.dtype
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.uint8

    @property
    def block_shape(self) -> tuple[int, ...]:
        return (self._data_bytes + 2 * self.kv_heads * self._groups * self.block_size,)

    def write(self, cache: Tensor, slots: Tensor, rows: Tensor) -> None:
        data, scales = encode_rows(rows, self.bits)
        block, offset = slots // self.block_size, slots % self.block_size
        self._data(cache)[block, offset] = data
        self._scales(cache)[block, :, :, offset] = scales.unsqueeze(-1).view(torch.uint8)

    def read(self, cache: Tensor, blocks: Tensor) -> Tensor:
        data = self._data(cache).index_select(0, blocks)
        scales = self._scales(cache).index_select(0, blocks).view(torch.bfloat16).squeeze(-1)
        # [blocks, kv_heads, groups, block_size] to [blocks, block_size, kv_heads, groups]
        return decode_rows(data, scales.permute(0, 3, 1, 2), self.bits).to(self.read_dtype)

    def as_read(self, rows: Tensor) -> Tensor:
        return decode_rows(*encode_rows(rows, self.bits), self.bits).to(self.read_dtype)

    def zero(self, cache: Tensor, slots: Tensor) -> None:
        block, offset = slots // self.block_size, slots % self.block_size
        self._data(cache)[block, offset] = 0
        self._scales(cache)[block, :, :, offset] = 0

    def probe(self, cache: Tensor, slots: Tensor) -> Tensor:
        block, offset = slots // self.block_size, slots % self.block_size
        scales = self._scales(cache)[block, :, :, offset].view(torch.bfloat16)
        return scales.sum(dtype=torch.float32)

    def parts(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """What a kernel reads, as views: integers, and the bits of their scales.

        Of blocks of an even number of tokens alone, whose scales begin at even addresses.

        Returns:
            uint8 ``[blocks, block_size, kv_heads, row]``, and int16 ``[blocks, kv_heads, groups,
            block_size]``.
        """
        scales = cache[:, self._data_bytes :].view(torch.int16)
        shape = (len(cache), self.kv_heads, self._groups, self.block_size)
        return self._data(cache), scales.view(shape)

    @property
    def _groups(self) -> int:
        return groups_of(self.head_dim, self.bits)

    @property
    def _row_bytes(self) -> int:
        return row_bytes(self.head_dim, self.bits)

    @property
    def _data_bytes(self) -> int:
        return self.block_size * self.kv_heads * self._row_bytes

    def _data(self, cache: Tensor) -> Tensor:
        """``[blocks, block_size, kv_heads, row]``, a view."""
        shape = (len(cache), self.block_size, self.kv_heads, self._row_bytes)
        return cache[:, : self._data_bytes].view(shape)

    def _scales(self, cache: Tensor) -> Tensor:
        """``[blocks, kv_heads, groups, block_size, 2]`` bytes, a view."""
        shape = (len(cache), self.kv_heads, self._groups, self.block_size, 2)
        return cache[:, self._data_bytes :].view(shape)
