"""Compiles what launchers launch for a GPU that is not there, and says what came of it."""

from __future__ import annotations

import inspect
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.int8: "i8",
}


@dataclass(frozen=True)
class Compiled:
    """A kernel's resources: ``shared`` and ``spilled`` in bytes, the latter a thread's."""

    name: str
    registers: int
    spilled: int
    shared: int
    tensor_cores: int  # instructions for them


@contextmanager
def compiling(capability: int) -> Iterator[list[Compiled]]:
    """Launches in here compile for such a GPU, and run nothing."""
    made: list[Compiled] = []
    seen: set[str] = set()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        source = _source(self, args)
        key = f"{self.__name__} {source.signature} {source.constants} {options}"
        if key not in seen:
            seen.add(key)
            target = GPUTarget("cuda", capability, 32)
            made.append(_measured(triton.compile(source, target=target, options=options)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        yield made


@contextmanager
def noting() -> Iterator[set[tuple[str, str]]]:
    """Launches in here run nothing: which kernels they are, and what for each is compiled."""
    launched: set[tuple[str, str]] = set()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        source = _source(self, args)
        form = f"{source.signature} {source.constants} {source.attrs} {options}"
        launched.add((self.__name__, form))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        yield launched


def _source(kernel: Any, args: tuple[Any, ...]) -> Any:
    """What a launch specializes a kernel for: constants, types, and multiples of 16."""
    constants: dict[tuple[int, ...], Any] = {}
    signature, attributes = {}, {}
    bound = inspect.signature(kernel.fn).bind(*args).arguments
    for index, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name], constants[index,] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            is_multiple = value.data_ptr() % 16 == 0
            is_multiple = is_multiple and not parameter.do_not_specialize_on_alignment
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
            is_multiple = isinstance(value, int) and value % 16 == 0
            is_multiple = is_multiple and not parameter.do_not_specialize
        if is_multiple:
            attributes[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def _measured(kernel: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in usage.splitlines() if "REG:" in line)
    counts = dict(word.split(":") for word in line.split() if word.count(":") == 1)
    code = kernel.asm["ptx"]
    return Compiled(
        name=kernel.metadata.name,
        registers=int(counts["REG"]),
        spilled=int(counts["STACK"]) + int(counts["LOCAL"]),
        shared=kernel.metadata.shared,
        tensor_cores=code.count("wgmma.mma_async") + code.count("mma.sync"),
    )
