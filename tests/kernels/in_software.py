"""The builds for AVX-512 and AVX-VNNI on a processor that has neither: in_software.hpp does their
instructions in plain C++, so that a change of a kernel is tested in every build.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import shlex
import subprocess
from pathlib import Path

import hatch_build

ROOT = Path(hatch_build.__file__).parent
SOURCES = ROOT / hatch_build.SOURCES
FOLDER = ROOT / "build" / "kernels-in-software"
HEADER = Path(__file__).parent / "in_software.hpp"
# Vectors that the processor does not have pass between functions of one file only: compilers
# need not warn of it.
PLAIN = (
    f"{hatch_build.INSTRUCTION_SETS['avx2']} -O1 -include {shlex.quote(str(HEADER))}"
    " -Wno-psabi -Wno-ignored-attributes"
)
# The last two run on every processor that runs the first two: they are not needed here.
BUILDS = {
    "avx512": PLAIN,
    "avxvnni": f"{PLAIN} -DIN_SOFTWARE_AVXVNNI",
    "avx2": "-DTWOSTROKE_OMIT_BUILD",
    "generic": "-O0",
}


def library_in_software() -> Path | None:
    """The library, which needs AVX2, or ``None`` if there is no compiler.

    It is compiled once, and again when a source or the compiler changes.

    Raises:
        RuntimeError: It does not compile.
    """
    result = _compile_once()
    if isinstance(result, RuntimeError):
        raise result
    return result


@functools.cache
def _compile_once() -> Path | RuntimeError | None:
    """The library or the error, which is kept too: 250 tests would each compile in vain."""
    compiler = hatch_build.find_compiler()
    if compiler is None:
        return None
    try:
        library = FOLDER / f"{_fingerprint(compiler)}.so"
        if library.exists():
            return library
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of several test processes compiles
            if not library.exists():
                _compile(compiler, library)
        return library
    except OSError:  # no such compiler, or the folder cannot be written
        return None
    except subprocess.CalledProcessError as error:
        return RuntimeError(
            f"the kernels do not compile with {HEADER.name}: does it lack an instruction?\n"
            f"{error.stderr}"
        )


def _compile(compiler: list[str], library: Path) -> None:
    for outdated in FOLDER.glob("*.so"):
        outdated.unlink(missing_ok=True)
    # Under another name until it is complete: what stopped in between is not found.
    unfinished = library.with_suffix(".unfinished")
    hatch_build.compile_library(compiler, SOURCES, unfinished, BUILDS, complete=True)
    unfinished.replace(library)


def _fingerprint(compiler: list[str]) -> str:
    """Of everything that the library is made of."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
    sources = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".cpp", ".hpp"))
    paths = [HEADER, Path(__file__), Path(hatch_build.__file__), *sources]
    contents = b"".join(path.read_bytes() for path in paths)
    return hashlib.sha256(version + contents).hexdigest()[:16]
