"""The kernels' builds for AVX-512 and AVX-VNNI on a processor that has neither: their instructions
in plain C++.

So that whoever changes a kernel sees what becomes of all of them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import subprocess
from pathlib import Path

import hatch_build

ROOT = Path(hatch_build.__file__).parent
FOLDER = ROOT / "build" / "kernels-in-software"
HEADER = Path(__file__).parent / "in_software.h"
PLAIN = f"{hatch_build.INSTRUCTION_SETS['avx2']} -O2 -include {shlex.quote(str(HEADER))}"
# Those that every processor has are not asked of this library, and soon compiled.
BUILDS = {
    "avx512": PLAIN,
    "avxvnni": f"{PLAIN} -DIN_SOFTWARE_AVXVNNI",
    "avx2": "-DTWOSTROKE_WITHOUT",
    "generic": "-O0",
}


def library_in_software() -> Path | None:
    """The library, which needs AVX2; compiled unless that has been done from the same sources.
    ``None``: no compiler.

    Raises:
        RuntimeError: It does not compile.
    """
    found = _library()
    if isinstance(found, RuntimeError):
        raise found
    return found


@functools.cache
def _library() -> Path | RuntimeError | None:
    """An error is kept as well: 250 tests would each compile for nothing."""
    compiler = hatch_build.find_compiler()
    if compiler is None:
        return None
    try:
        library = FOLDER / f"{_digest(compiler)}.so"
        if library.exists():
            return library
        FOLDER.mkdir(parents=True, exist_ok=True)
        for earlier in FOLDER.glob("*.so"):
            earlier.unlink(missing_ok=True)
        unfinished = library.with_suffix(
            f".{os.getpid()}"
        )  # whoever else tests here must not load half of it
        hatch_build.compile_library(
            compiler, ROOT / hatch_build.SOURCES, unfinished, BUILDS, complete=True
        )
        unfinished.replace(library)
        return library
    except OSError:  # no such compiler, or nowhere to write
        return None
    except subprocess.CalledProcessError as error:
        return RuntimeError(
            f"the kernels do not compile with {HEADER.name}; what it lacks?\n{error.stderr}"
        )


def _digest(compiler: list[str]) -> str:
    """Of everything that the library is made of."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
    sources = sorted((ROOT / hatch_build.SOURCES).iterdir())
    read = [HEADER, Path(__file__), Path(hatch_build.__file__)]
    read += [path for path in sources if path.suffix in (".cpp", ".h", ".inc")]
    return hashlib.sha256(version + b"".join(path.read_bytes() for path in read)).hexdigest()[:16]
