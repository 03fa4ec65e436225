"""Compiles the CPU kernels when the package is built. Without a C++ compiler the package is built
without them.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("src/twostroke/kernels/cpp")
LIBRARY = Path("src/twostroke/kernels/cpp/kernels.so")
# -ffp-contract=fast: products are fused with sums wherever that is possible, so in all kernels
#   alike. That attention adds the same for one row and for many rests on it.
FLAGS = [
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-w",
]
# One build of the same kernels per instruction set; which one runs is decided when they are loaded.
INSTRUCTION_SETS = {
    "avx2": "-mavx2 -mfma",
    "avxvnni": "-mavx2 -mfma -mavxvnni",
    "avx512": "-mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni"
    " -mprefer-vector-width=512",
}


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning(
                "no C++ compiler found: twostroke is built without its CPU kernels"
            )
            return
        try:
            compile_library(compiler, root / SOURCES, root / LIBRARY)
        except (
            OSError,
            subprocess.CalledProcessError,
        ) as error:  # no such compiler, nowhere to write; its words
            reason = getattr(error, "stderr", error)
            self.app.display_warning(
                f"the CPU kernels did not compile, twostroke is built without them:\n{reason}"
            )
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"], build_data["infer_tag"] = False, True


def find_compiler() -> list[str] | None:
    """The command named by CXX, or the first C++ compiler on the path."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def compile_library(
    compiler: list[str],
    sources: Path,
    library: Path,
    instruction_sets: Mapping[str, str] = INSTRUCTION_SETS,
    *,
    complete: bool = False,
) -> None:
    """Compile every source file and link them; raises OSError, or CalledProcessError with the
    compiler's words.

    Args:
        instruction_sets: More flags, by the name of a source file.
        complete: A build that does not compile fails all; by default the library goes without it.
    """
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")

    def run(*arguments: str | Path) -> None:
        subprocess.run(
            [*compiler, *map(str, arguments)], check=True, capture_output=True, text=True
        )

    def build(source: Path) -> Path:
        target = Path(folder) / f"{source.stem}.o"
        extra = shlex.split(instruction_sets.get(source.stem, "")) if on_x86 else []
        try:
            run(*FLAGS, *extra, "-c", source, "-o", target)
        except subprocess.CalledProcessError:
            if complete or not extra:
                raise
            run(
                *FLAGS, "-DTWOSTROKE_WITHOUT", "-c", source, "-o", target
            )  # a compiler too old for these instructions
        return target

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(build, sorted(sources.glob("*.cpp"))))
        temporary = Path(folder) / library.name
        run("-shared", "-pthread", "-s", *objects, "-o", temporary)
        library.unlink(
            missing_ok=True
        )  # a process may have the old one mapped: replaced, never overwritten
        shutil.move(temporary, library)


if __name__ == "__main__":
    found = find_compiler()
    if found is None:
        raise SystemExit("error: no C++ compiler found\n\nhint: install g++ or clang++, or set CXX")
    here = Path(__file__).parent
    compile_library(found, here / SOURCES, here / LIBRARY)
