"""Compiles the CPU kernels when the package is built; without a C++ compiler, leaves them out."""

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
LIBRARY = SOURCES / "kernels.so"
# -ffp-contract=fast fuses products with sums in all kernels alike. Attention's sums are the same
# for one row and for many because of it.
FLAGS = [
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
]
# Errors in the tests, and only there: a new compiler's new warning must not break an installation.
# Left out:
# -Wold-style-cast: a C cast is how a vector's bits become another vector type.
# -Wuninitialized, -Wmaybe-uninitialized: GCC 12 reports its own AVX-512 intrinsics, which begin
#   with a vector that they never set.
# -Wunknown-warning-option: clang does not know the one before.
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]
# One build of the same kernels per instruction set, by the name of its source file. Which one runs
# is decided when the library is loaded.
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
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", error)  # the compiler's message, if it ran
            self.app.display_warning(
                f"the CPU kernels did not compile, twostroke is built without them:\n{reason}"
            )
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"], build_data["infer_tag"] = False, True


def find_compiler() -> list[str] | None:
    """The command that CXX holds, or the first C++ compiler on the path."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def flags_for(
    source: Path, sources: Path, instruction_sets: Mapping[str, str] = INSTRUCTION_SETS
) -> list[str]:
    """Flags for one source file in the folder ``sources``, those of its instruction set last."""
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    own_flags = shlex.split(instruction_sets.get(source.stem, "")) if on_x86 else []
    return [*FLAGS, *WARNINGS, f"-I{sources}", *own_flags]


def compile_library(
    compiler: list[str],
    sources: Path,
    library: Path,
    instruction_sets: Mapping[str, str] = INSTRUCTION_SETS,
    *,
    complete: bool = False,
) -> None:
    """Compile every source file below ``sources`` and link them.

    Args:
        instruction_sets: More flags, by the name of a source file.
        complete: A build that does not compile is an error; by default it is left out, since the
            compiler may be too old for its instructions.

    Raises:
        OSError: There is no such compiler, or the library cannot be written.
        subprocess.CalledProcessError: It does not compile; ``stderr`` has the compiler's message.
    """

    def run(*arguments: str | Path) -> None:
        subprocess.run(
            [*compiler, *map(str, arguments)], check=True, capture_output=True, text=True
        )

    def compile_source(source: Path) -> Path:
        target = Path(folder) / f"{source.stem}.o"
        flags = flags_for(source, sources, instruction_sets)
        try:
            run(*flags, "-c", source, "-o", target)
        except subprocess.CalledProcessError:
            if complete or flags == flags_for(source, sources, {}):
                raise
            flags = [*flags_for(source, sources, {}), "-DTWOSTROKE_OMIT_BUILD"]
            run(*flags, "-c", source, "-o", target)
        return target

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_source, sorted(sources.rglob("*.cpp"))))
        temporary = Path(folder) / library.name
        run("-shared", "-pthread", "-s", *objects, "-o", temporary)
        # Replaced, never overwritten: a process may have the old one mapped.
        library.unlink(missing_ok=True)
        shutil.move(temporary, library)


def main() -> None:
    """Compile the library of this checkout, with the compiler's message if that fails."""
    compiler = find_compiler()
    if compiler is None:
        raise SystemExit("error: no C++ compiler found\n\nhint: install g++ or clang++, or set CXX")
    root = Path(__file__).parent
    try:
        compile_library(compiler, root / SOURCES, root / LIBRARY)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: the kernels do not compile\n{error.stderr}") from None


if __name__ == "__main__":
    main()
