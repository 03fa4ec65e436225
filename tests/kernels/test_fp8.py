"""Protects: the kernels round every bfloat16 to e4m3 as the plain form of the cache does."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

import hatch_build
from tests.kernels.in_software import SOURCES
from twostroke.layers.kv_layout import make_layout

PROGRAM = """
#include "vectors/fp8.hpp"
extern "C" __attribute__((visibility("default")))
void store_all(unsigned char* to, const unsigned short* from, long count) {
    twostroke::store_fp8(reinterpret_cast<twostroke::fp8*>(to), from, count);
}
"""


def test_every_bfloat16_is_rounded_as_the_plain_form_rounds_it(tmp_path: Path) -> None:
    compiler = hatch_build.find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, target = tmp_path / "store.cpp", tmp_path / "store.so"
    source.write_text(PROGRAM)
    flags = [*hatch_build.flags_for(source, SOURCES), "-Wno-unused-function", "-shared"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(target)], check=True)
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    layout = make_layout("fp8", torch.bfloat16, 1, 1, 1)
    expected = torch.zeros(len(every), *layout.block_shape).to(layout.dtype)
    layout.write(expected, torch.arange(len(every)), every.view(-1, 1, 1))
    actual = torch.empty(len(every), dtype=torch.uint8)
    ctypes.CDLL(str(target)).store_all(
        ctypes.c_void_p(actual.data_ptr()),
        ctypes.c_void_p(every.data_ptr()),
        ctypes.c_long(len(every)),
    )
    assert torch.equal(actual, expected.view(torch.uint8).flatten())
