"""Lets a launch in Triton's interpreter fail where a GPU would read beyond a kernel's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder


@contextmanager
def within_bounds() -> Iterator[None]:
    """What kernels read and write in here lies in the memory of the tensors that they got."""
    launch = GridExecutor.__call__
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    memory = np.zeros((0, 2), dtype=np.uint64)  # first byte and end of each, rising

    def checked_launch(self: Any, *args: Any, **options: Any) -> None:
        nonlocal memory
        tensors = [each for each in (*args, *options.values()) if isinstance(each, torch.Tensor)]
        parts = {own.data_ptr(): own.nbytes() for own in map(torch.Tensor.untyped_storage, tensors)}
        ranges = sorted((first, first + size) for first, size in parts.items() if size)
        memory = np.array(ranges, dtype=np.uint64).reshape(-1, 2)
        launch(self, *args, **options)

    def check(pointers: Any, mask: Any) -> None:
        addresses = pointers.data[mask.data]
        size = np.uint64(pointers.get_element_ty().primitive_bitwidth // 8)
        place = np.searchsorted(memory[:, 0], addresses, side="right").astype(np.int64) - 1
        outside = (place < 0) | (addresses + size > memory[place, 1])
        assert not outside.any(), f"{outside.sum()} addresses lie in no tensor of the kernel"

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", checked_launch)
        patch.setattr(InterpreterBuilder, "create_masked_load", checked_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", checked_store)
        yield
