"""Files that people have: does each run, on which path, and at what speed?

    python -m benchmarks.gguf.file_formats FOLDER [FILE.gguf ...]

FOLDER is a checkpoint in bfloat16 (``benchmarks.make_checkpoint 350m``); GGUF files are those that
llama.cpp's tools made of it. Quantised folders of the same sizes are made here: by ``twostroke
quantize``, and with random codes by the packers of the tests. Each server is started twice, and the
second start counts. Linux only. Writes benchmarks/results/file_formats.json and .md.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import cyclopts
import httpx
import numpy as np

from benchmarks.environment import OtherPrograms, environment, environment_text, write_record
from benchmarks.memory import status_bytes
from benchmarks.server import running_server
from tests.quantised.packers import Pack, Packed, write_both
from tests.quantised.test_served import DECODED, KEPT

RESULTS = Path(__file__).parents[1] / "results"
PACKED = {
    "compressed-tensors W8A8": KEPT["w8a8"][1],
    "GPTQ, 4 bits": KEPT["gptq"][1],
    "GPTQ with desc_act": DECODED["gptq-ordered"],
    "AWQ": KEPT["awq"][1],
    "fp8 by tensor": DECODED["fp8-tensor"],
    "ModelOpt NVFP4": DECODED["modelopt-nvfp4"],
}
PROMPT, OUTPUT = 64, 64
KV_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Served:
    """What ``twostroke models`` says of a file, and how it runs.

    Attributes:
        tokens: Tokens a second by the number of requests at a time.
    """

    stored: str
    path: str
    file_bytes: int
    ready_seconds: float
    resident: int
    tokens: dict[int, float]


def main(folder: Path, *files: Path, out: Path = RESULTS) -> None:
    """Measure and record.

    Args:
        folder: The checkpoint in bfloat16.
        files: GGUF files of the same model.
        out: Folder for the record.
    """
    other_programs = OtherPrograms()
    served: dict[str, Served] = {}
    lines = [
        "| file | stored as | runs | bytes | ready | resident | tokens/s: 1 | 4 | 16 |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    with tempfile.TemporaryDirectory(prefix="twostroke-formats-") as work:
        for name, path in checkpoints(folder, files, Path(work)):
            served[name] = measure(path, Path(work) / "server.log")
            lines.append(row(name, served[name]))
            print(lines[-1], flush=True)
    command = shlex.join(["python", "-m", "benchmarks.gguf.file_formats", *sys.argv[1:]])
    where = environment(command, other_programs.share())
    text = (
        f"{environment_text(where)}\nPrompts of {PROMPT} tokens, answers of {OUTPUT}; resident:"
        f" with a KV cache of up to {KV_BYTES >> 20} MiB\nand pages of the file.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    record = {"environment": where, "served": {n: asdict(each) for n, each in served.items()}}
    write_record(out / "file_formats", "Files that run, and how fast", text, record)


def checkpoints(folder: Path, files: tuple[Path, ...], work: Path) -> Iterator[tuple[str, Path]]:
    """Each with its name; those that are made are removed after they were used."""
    yield "safetensors, bfloat16", folder
    for file in files:
        yield f"GGUF {file.stem}", file
    for to in ("int4", "int8"):
        made = work / to
        command = ["quantize", str(folder), "--to", to, "-o", str(made), "--no-compare"]
        subprocess.run([sys.executable, "-m", "twostroke", *command], check=True, stdout=sys.stderr)
        yield f"`quantize --to {to}`", made
        shutil.rmtree(made)
    raw = json.loads((folder / "config.json").read_text())
    for name, (quantization, pack) in PACKED.items():
        made, exact, _ = write_both(work, quantization, once_a_shape(pack), raw)
        shutil.rmtree(exact)
        for part in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / part, made)
        yield name, made
        shutil.rmtree(made)


def once_a_shape(pack: Pack) -> Pack:
    """The same numbers for all layers of a shape: they are packed one by one, which takes long."""
    packed: dict[tuple[int, int], Packed] = {}

    def pack_once(generator: np.random.Generator, outputs: int, inputs: int) -> Packed:
        if (outputs, inputs) not in packed:
            packed[outputs, inputs] = pack(generator, outputs, inputs)
        return packed[outputs, inputs]

    return pack_once


def measure(path: Path, log: Path) -> Served:
    """Ask what it is, start it twice, and let requests run."""
    listed = [sys.executable, "-m", "twostroke", "models", str(path), "--json"]
    survey = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
    flags = ("--kv-cache-memory", str(KV_BYTES), "--max-model-len", "1024", "--dtype", "bfloat16")
    tokens: dict[int, float] = {}
    with running_server(str(path), log, *flags):
        pass  # the file is in the page cache now
    with running_server(str(path), log, *flags) as server:
        generate(server.url, 4)
        for clients in (1, 4, 16):
            tokens[clients] = max(generate(server.url, clients) for _ in range(2))
        resident = status_bytes(server.process.pid, "VmRSS")
    size = sum(each.stat().st_size for each in ([path] if path.is_file() else path.iterdir()))
    stored = ", ".join(survey["stored"]).replace("compressed-tensors ", "")
    return Served(stored, survey["path"], size, server.ready_seconds, resident, tokens)


def generate(url: str, clients: int) -> float:
    """Tokens a second of so many requests at a time."""
    draw = random.Random(clients)
    bodies = [
        {
            "prompt": [draw.randrange(300, 30_000) for _ in range(PROMPT)],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
        }
        for _ in range(clients)
    ]
    with httpx.Client(trust_env=False, timeout=600) as client, ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        for answer in pool.map(
            lambda body: client.post(f"{url}/v1/completions", json=body), bodies
        ):
            answer.raise_for_status()
        return clients * OUTPUT / (time.perf_counter() - began)


def row(name: str, served: Served) -> str:
    speeds = " | ".join(f"{served.tokens[clients]:.0f}" for clients in (1, 4, 16))
    return (
        f"| {name} | {served.stored} | {served.path} | {served.file_bytes / 1e6:.0f} MB"
        f" | {served.ready_seconds:.1f} s | {served.resident / 1e6:.0f} MB | {speeds} |"
    )


if __name__ == "__main__":
    cyclopts.run(main)
