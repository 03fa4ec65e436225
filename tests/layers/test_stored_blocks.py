"""Blocks of GGUF files, put in the kernels' order by one of them, are what NumPy makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from twostroke.checkpoints.gguf.block_formats import SIZES
from twostroke.checkpoints.gguf.dequantise import SPLIT, take_apart
from twostroke.kernels.library import LANES, Library, load_library
from twostroke.layers.stored_blocks import StoredBlocks, join_kept
from twostroke.layers.stored_weights import StoredWeight
from twostroke.runtime.checkpoints.tensor_files import KEPT_FORMATS

# Where float16 numbers lie in a block.
FACTORS = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": ()}
INPUTS = 512


@pytest.fixture(scope="module")
def library() -> Library:
    loaded = load_library()
    if loaded is None:
        pytest.skip("no compiled kernels")
    return loaded


def drawn_rows(name: str, outputs: int, seed: int = 0) -> NDArray[np.uint8]:
    """Any bytes, but factors that are finite: some normal, some below, some zero."""
    random = np.random.default_rng(seed)
    elements, nbytes = SIZES[name]
    blocks = random.integers(0, 256, (outputs * INPUTS // elements, nbytes), dtype=np.uint8)
    for at in FACTORS[name]:
        values = random.normal(size=len(blocks)) * 10.0 ** random.integers(-8, 4, len(blocks))
        values[::7] = 0
        blocks[:, at : at + 2] = values.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(outputs, -1)


def reference(name: str, rows: NDArray[np.uint8]) -> StoredWeight:
    codes, *rest = take_apart(name, rows)
    others = [None if part is None else torch.from_numpy(part) for part in rest]
    return StoredWeight(KEPT_FORMATS[name], torch.from_numpy(codes), *others)


@pytest.mark.parametrize("outputs", [16, 40, 7])
@pytest.mark.parametrize("name", SPLIT)
def test_every_number_is_where_the_reference_has_it(
    name: str, outputs: int, library: Library
) -> None:
    rows = drawn_rows(name, outputs)
    got = StoredBlocks(KEPT_FORMATS[name], rows, INPUTS, library).packed()
    expected = reference(name, rows).packed()
    assert got.format == expected.format and got.outputs == expected.outputs == outputs
    whole = outputs // LANES
    assert got.scales is not None and expected.scales is not None
    for own, other in ((got.data, expected.data), (got.scales, expected.scales)):
        assert own.shape == other.shape and own.dtype == other.dtype
        assert torch.equal(own[:whole], other[:whole])
    last = outputs % LANES  # what is behind them is padding, and never read
    assert torch.equal(got.data[whole:, :, :, :last], expected.data[whole:, :, :, :last])


@pytest.mark.parametrize("name", SPLIT)
def test_rows_are_joined_and_reordered_as_the_references_are(name: str, library: Library) -> None:
    parts = [drawn_rows(name, outputs, seed) for seed, outputs in enumerate((24, 24))]
    order = torch.randperm(48)
    blocks = [StoredBlocks(KEPT_FORMATS[name], rows, INPUTS, library) for rows in parts]
    got = join_kept(blocks).reordered(order).packed()
    expected = reference(name, np.concatenate(parts)).reordered(order).packed()
    assert torch.equal(got.data, expected.data)
    assert got.scales is not None and expected.scales is not None
    assert torch.equal(got.scales, expected.scales)
