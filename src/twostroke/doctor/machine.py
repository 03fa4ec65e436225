"""The machine before there is traffic: what it has, what serving wants, and what changes it.

Nothing is changed here. Everything is read from Linux's own files but the memory's bandwidth,
which is measured by copying for a second at most.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from twostroke.core.flags.byte_sizes import format_decimal_bytes
from twostroke.core.operator.host_memory import free_host_memory
from twostroke.kernels.library import load_library
from twostroke.model_spec.kv_arithmetic import kv_arithmetic
from twostroke.model_spec.public_models import find_model, public_names
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.measured_on import processor_name

COPY_SECONDS, COPY_BYTES = 1.0, 1 << 26
STEAL_SECONDS = 0.3
# A core reaches some ten; far less is a machine whose memory others use.
MIN_BANDWIDTH = 8e9
MAX_STEAL = 0.02
# What ranks of one model and PyTorch's own workers exchange goes through it; containers get 64 MiB.
MIN_SHARED = 256 << 20
MIN_FILES = 4096
# Of the memory that is free: what the KV cache takes by default (--cpu-memory-utilization).
KV_SHARE = 0.25
USUAL_LENGTH = 4096
# Weights of so few bytes are read from a processor's last cache.
IN_CACHE = 32 << 20
# The newest instructions that the kernels have a build for, by the processor's flags.
BUILDS = (("avx512", "avx512_vnni"), ("avxvnni", "avx_vnni"), ("avx2", "avx2"))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        command: What changes it, where it is not as wanted.
    """

    name: str
    measured: str
    expected: str
    is_good: bool
    command: str = ""


def check_machine(
    model: str | None = None, progress: Callable[[str, int, int], None] = lambda *_: None
) -> list[Finding]:
    """Look at the machine, and at whether a model fits.

    Raises:
        ModelLoadError: There is no such model.
    """
    spec = None if model is None else find_model(model)
    cores = usable_cores()
    findings = [_cores(cores), _load(cores), _instructions(), _threads(cores, os.environ)]
    progress("measuring bandwidth", 0, 1)
    bandwidth = copy_bandwidth(cores)
    findings.append(_bandwidth(bandwidth))
    findings.append(_steal())
    findings += [_huge_pages(), _shared_memory(), _files()]
    if spec is not None and model is not None:
        findings += model_findings(model, spec, free_host_memory(), bandwidth)
    return findings


def findings_fields(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Plain values."""
    return [asdict(finding) for finding in findings]


def usable_cores() -> int:
    """Cores that this process may use, within the limits of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def copy_bandwidth(threads: int) -> float:
    """Bytes a second that ``threads`` threads read and write together, at their best moment."""
    pairs = [(np.ones(COPY_BYTES >> 3), np.empty(COPY_BYTES >> 3)) for _ in range(threads)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        np.copyto(pair[1], pair[0])

    best, until = 0.0, time.perf_counter() + COPY_SECONDS
    with ThreadPoolExecutor(threads) as pool:
        while time.perf_counter() < until:
            began = time.perf_counter()
            list(pool.map(copy, pairs))
            best = max(best, 2 * COPY_BYTES * threads / (time.perf_counter() - began))
    return best


def model_findings(name: str, spec: ModelSpec, available: int, bandwidth: float) -> list[Finding]:
    """Whether weights and KV cache fit the free memory, and what bandwidth makes of it."""
    weights = spec.weight_bytes()
    length = min(USUAL_LENGTH, spec.context_length)
    cache = kv_arithmetic(spec, length, "auto").bytes_per_token * length
    room = KV_SHARE * max(0, available - weights)
    fits = weights < available and cache <= room
    smaller = next(
        (
            format_
            for format_ in ("int8", "int4")
            if spec.weight_bytes(format_) + cache / KV_SHARE < available
        ),
        None,
    )
    command = ""
    served = "CHECKPOINT" if name in public_names() else name  # a public name holds no weights
    if not fits:
        command = (
            f"twostroke serve {served} --quantization {smaller}"
            if smaller
            else f"a smaller model, or a device: twostroke plan {name}"
        )
    bound = f"at most {bandwidth / max(1, weights):,.3g} tokens/s: each reads all weights"
    if weights < IN_CACHE:
        bound = "not bound by bandwidth: the weights stay in the processor's cache"
    requests = f"; KV cache for {room / max(1.0, cache):.1f} requests of {length:,} tokens"
    return [
        Finding(
            f"{name} fits",
            f"{format_decimal_bytes(weights)} of weights{requests if weights < available else ''}",
            f"{format_decimal_bytes(available)} of free memory",
            fits,
            command,
        ),
        Finding(
            f"{name}, one request",
            bound,
            "",
            True,
        ),
    ]


def _cores(cores: int) -> Finding:
    there = os.cpu_count() or cores
    command = "raise the container's limit (docker --cpus) or the affinity (taskset)"
    shown = f"{cores} of {there} ({processor_name()})"
    return Finding("cores", shown, f"all {there}", cores == there, command)


def _load(cores: int) -> Finding:
    load = os.getloadavg()[0]
    return Finding(
        "load of the last minute",
        f"{load:.2f}",
        f"below {0.5 * cores:g} before traffic",
        load < 0.5 * cores,
        "top -o %CPU shows what runs; stop it, or keep it off the cores with taskset",
    )


def _instructions() -> Finding:
    flags = next(
        (line for line in _read("/proc/cpuinfo").splitlines() if line.startswith("flags")), ""
    ).split()
    wanted = next((build for build, flag in BUILDS if flag in flags), "generic")
    library = load_library()
    has = "none: PyTorch's own operators run" if library is None else library.instruction_set
    return Finding(
        "instruction set of the kernels",
        has,
        wanted,
        has == wanted,
        "pip install --force-reinstall --no-binary twostroke twostroke (it needs a C++ compiler)",
    )


def _threads(cores: int, environment: Mapping[str, str]) -> Finding:
    given = environment.get("OMP_NUM_THREADS", "")
    good = not given or given == str(cores)
    return Finding(
        "threads",
        f"OMP_NUM_THREADS={given}" if given else "one a core",
        f"{cores}",
        good,
        "unset OMP_NUM_THREADS",
    )


def _bandwidth(bandwidth: float) -> Finding:
    return Finding(
        "memory bandwidth",
        f"{bandwidth / 1e9:.1f} GB/s",
        f"above {MIN_BANDWIDTH / 1e9:g} GB/s",
        bandwidth >= MIN_BANDWIDTH,
        "look for programs that use the memory; on several sockets: numactl --cpunodebind=0"
        " --membind=0 twostroke serve ...",
    )


def _steal() -> Finding:
    """Time that the hypervisor gave to other machines."""
    first = psutil.cpu_times()
    time.sleep(STEAL_SECONDS)
    second = psutil.cpu_times()
    total = sum(second) - sum(first)
    share = (getattr(second, "steal", 0.0) - getattr(first, "steal", 0.0)) / max(1e-9, total)
    return Finding(
        "time stolen by other machines",
        f"{share:.0%}",
        f"below {MAX_STEAL:.0%}",
        share < MAX_STEAL,
        "ask for a machine with cores of its own; vmstat 1 shows it as st",
    )


def _huge_pages() -> Finding:
    text = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    now = text.partition("[")[2].partition("]")[0] or "not known"
    return Finding(
        "transparent huge pages",
        now,
        "always or madvise",
        now != "never",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _shared_memory() -> Finding:
    try:
        free = psutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    return Finding(
        "shared memory (/dev/shm)",
        f"{format_decimal_bytes(free)} free",
        f"{format_decimal_bytes(MIN_SHARED)}, for --tensor-parallel-size",
        free >= MIN_SHARED,
        "docker run --shm-size 1g ..., or sudo mount -o remount,size=1G /dev/shm",
    )


def _files() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    good = limit == resource.RLIM_INFINITY or limit >= MIN_FILES
    return Finding("open files", shown, f"{MIN_FILES:,}", good, f"ulimit -n {MIN_FILES}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
