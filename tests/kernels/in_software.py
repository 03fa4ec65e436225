"""The kernels' builds for AVX-512 and AVX-VNNI on a processor that has neither: their instructions in plain C++.

So that whoever changes a kernel sees what becomes of all of them.
"""

from __future__ import annotations

import functools
import hashlib
import shlex
from pathlib import Path

import hatch_build

ROOT = Path(hatch_build.__file__).parent
HEADER = Path(__file__).parent / "in_software.h"
PLAIN = f"{hatch_build.INSTRUCTION_SETS['avx2']} -O2 -include {shlex.quote(str(HEADER))}"
# Those that every processor has are not asked of this library, and soon compiled.
BUILDS = {"avx512": PLAIN, "avxvnni": f"{PLAIN} -D__AVXVNNI__", "avx2": "-DTWOSTROKE_WITHOUT", "generic": "-O0"}


@functools.cache
def library_in_software() -> Path | None:
    """The library, which needs AVX2; compiled unless that has been done from the same sources. ``None``: no compiler.

    Raises:
        CalledProcessError: It does not compile.
    """
    compiler = hatch_build.find_compiler()
    if compiler is None:
        return None
    sources = ROOT / hatch_build.SOURCES
    read = [HEADER, Path(__file__), Path(hatch_build.__file__)]
    read += sorted(path for path in sources.iterdir() if path.suffix in (".cpp", ".h", ".inc"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in read)).hexdigest()[:16]
    folder = ROOT / ".pytest_cache"
    library = folder / f"kernels-in-software-{digest}.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        for earlier in folder.glob("kernels-in-software-*.so"):
            earlier.unlink()
        hatch_build.compile_library(compiler, sources, library, BUILDS)
    return library
