"""What watching costs: throughput over HTTP with targets and metrics, and with traces, in turn.

    python -m benchmarks.monitoring.cost

One server a kind, all on the same model, started once; ``twostroke bench serve`` loads them in
turn, in an order that is reversed each round, so that what the machine does meanwhile hits all
alike. The median of the rounds' ratios counts.

- ``plain``: no target; ``/metrics`` is not asked for. (Counting itself has no switch.)
- ``watched``: five targets and those of each key, ``/metrics`` scraped each second.
- ``traced``: as plain, with every call traced to a collector on loopback, a process of its own.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cyclopts
import httpx
import psutil

from benchmarks import make_checkpoint
from benchmarks.environment import (
    ROOT,
    OtherPrograms,
    environment,
    environment_text,
    write_record,
)
from benchmarks.http_throughput import run_client
from benchmarks.monitoring import narrow
from benchmarks.server import ServerProcess, free_port, running_server
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.observability.observer import ObservedStep, Observer
from twostroke.observability.tracing.timelines import Timeline, TimelineObserver

RESULTS = Path(__file__).parent / "results"
LIMITS = {"watched": 0.01, "traced": 0.03}
SCRAPE_SECONDS = 1.0
# Takes what is sent; that it can be decoded is shown by the tests.
COLLECTOR = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def main(
    *,
    model: str = "10m",
    concurrency: int = 64,
    requests: int = 256,
    input_len: int = 128,
    output_len: int = 64,
    rounds: int = 6,
    out: Path = RESULTS,
) -> None:
    """Measure the three kinds in turn.

    Args:
        model: An embedded model, a folder, or 10m or 350m for a random checkpoint of that size.
        concurrency: Requests at a time.
        requests: Requests of a run.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        rounds: Of one run for each kind.
        out: Folder for the record.
    """
    others = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="twostroke-cost-") as name, ExitStack() as stack:
        folder, served = Path(name), model
        if model in make_checkpoint.SIZES:
            served = str(folder / model)
            make_checkpoint.main(model, served)
        collector = stack.enter_context(running_collector())
        targets = ROOT / "deploy" / "prometheus" / "targets.txt"
        flags = {
            "plain": (),
            "watched": ("--target-file", str(targets), "--target", "ttft=p95:0.3,key=*"),
            "traced": ("--otlp-traces-endpoint", collector),
        }
        servers = {
            kind: stack.enter_context(running_server(served, folder / f"{kind}.log", *flags[kind]))
            for kind in flags
        }
        load = ["--num-prompts", str(requests), "--max-concurrency", str(concurrency)]
        load += ["--random-input-len", str(input_len), "--random-output-len", str(output_len)]
        load += ["--ignore-eos", "--num-warmups", "4"]
        runs: dict[str, list[float]] = {kind: [] for kind in flags}
        cpu: dict[str, list[float]] = {kind: [] for kind in flags}
        for number in range(rounds + 1):
            order = [*flags] if number % 2 else [*reversed(flags)]
            for kind in order:
                before = cpu_seconds(servers[kind])
                with scraped(servers[kind].url if kind == "watched" else None):
                    seeded = [*load, "--seed", str(number)]
                    report = run_client(servers[kind].url, seeded, requests, folder)
                speed, spent = report["output_throughput"], cpu_seconds(servers[kind]) - before
                if number:  # the first round only warms up
                    runs[kind].append(speed)
                    cpu[kind].append(1000 * spent / (requests * output_len))
                print(f"{number} {kind}: {speed:.0f}/s, {spent:.2f} s of CPU", file=sys.stderr)
        shares = observer_shares(served, concurrency, input_len, output_len)
    spans = span_milliseconds()
    text = f"{table(runs)}\n\n{cpu_table(cpu)}\n\n{share_table(shares)}\n\n"
    per_call = statistics.median(cpu["plain"]) * output_len
    text += (
        f"The exporter's thread takes {spans:.2f} ms of CPU time for a trace of ten spans, which is"
        f" {spans / per_call:.1%} of the {per_call:.1f} ms that a call took the plain server."
    )
    print(text)
    command = shlex.join(["python", "-m", "benchmarks.monitoring.cost", *sys.argv[1:]])
    where = environment(command, others.share())
    write_record(
        out / f"cost_{Path(model).name}",
        "What watching costs",
        narrow(f"{environment_text(where)}\n{text}"),
        {
            **where,
            "concurrency": concurrency,
            "runs": runs,
            "cpu": cpu,
            "shares": shares,
            "span_milliseconds": spans,
        },
    )


def cpu_seconds(server: ServerProcess) -> float:
    """What a server has spent so far, all its threads together."""
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def cpu_table(cpu: dict[str, list[float]]) -> str:
    """Medians, and the ratio to plain of each round."""
    lines = [
        "The server's CPU time, all its threads, in ms for each output token: other programs on",
        "the machine change it less than the throughput.",
        "",
        "| kind | median | ratio, median | lowest | highest |",
        "|---|---|---|---|---|",
    ]
    for kind, spent in cpu.items():
        ratios = [one / plain for one, plain in zip(spent, cpu["plain"])]
        lines.append(
            f"| {kind} | {statistics.median(spent):.3f} | {statistics.median(ratios):.3f} |"
            f" {min(ratios):.3f} | {max(ratios):.3f} |"
        )
    return "\n".join(lines)


class TimedObserver:
    """Implements ``Observer``: another one, and the seconds that it takes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.name = type(observer).__name__
        self.seconds = 0.0

    def on_add(self, requests: Sequence[Request]) -> None:
        self._measure(self._observer.on_add, requests)

    def on_step(self, step: ObservedStep) -> None:
        self._measure(self._observer.on_step, step)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._measure(self._observer.on_end, requests, outputs)

    def close(self) -> None:
        self._observer.close()

    def _measure(self, method: Callable[..., None], *arguments: object) -> None:
        began = time.perf_counter()
        method(*arguments)
        self.seconds += time.perf_counter() - began


def observer_shares(
    model: str, concurrency: int, input_len: int, output_len: int
) -> dict[str, float]:
    """Share of the engine's time that each observer takes, in this process, without HTTP.

    Two runs over HTTP differ by more than a percent; these shares do not.
    """
    from twostroke.core.config import EngineConfig
    from twostroke.startup import load_engine

    followed: dict[str, Keeper] = {}
    config = EngineConfig.from_flat(
        {
            "model": model,
            "max_num_seqs": concurrency,
            "target_file": str(ROOT / "deploy" / "prometheus" / "targets.txt"),
            "target": ("ttft=p95:0.3,key=*",),
        }
    )
    engine = load_engine(config, observers=[TimelineObserver(followed)])
    timed = [TimedObserver(observer) for observer in engine.loop.observers]
    engine.loop.observers = timed
    params = SamplingParams(max_tokens=output_len, ignore_eos=True)
    began = time.perf_counter()
    for number in range(4 * concurrency):
        tokens = [(number * 31 + i * 7) % 1000 + 1 for i in range(input_len)]
        followed[str(number)] = Keeper()
        engine.submit(
            GenerationRequest(
                request_id=str(number), prompt_token_ids=tokens, params=params, tenant="a"
            )
        )
    while engine.has_work():
        engine.step()
    total = time.perf_counter() - began
    engine.close()
    return {observer.name: observer.seconds / total for observer in timed}


class Keeper:
    """Implements ``TimelineKeeper``: keeps all."""

    def keep(self, timeline: Timeline) -> bool:
        return True


def span_milliseconds() -> float:
    """CPU time of the exporter's thread for one trace: ten spans, made and encoded; in ms."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from twostroke.observability.tracing import names
    from twostroke.observability.tracing.spans import SpanMaker
    from twostroke.observability.tracing.timelines import Progress, PromptChunk, Sampling
    from twostroke.observability.tracing.trace import RequestTrace

    trace = RequestTrace(None, {}, lambda _: None)
    trace.attributes[names.URL_PATH] = "/v1/chat/completions"
    trace.attributes[names.VLLM_REQUEST_ID] = "chatcmpl-1"
    for stage in (names.READ, names.CONTEXT, names.TOKENISE, names.PREPARE):
        trace.stage(stage, {names.NUM_TOKENS: 100})
    timeline = Timeline("chatcmpl-1", 0, trace.began, Sampling.of(SamplingParams()), 256)
    timeline.chunks += [PromptChunk(trace.began, trace.began, 1, 0, 256, 64)] * 2
    timeline.progress += [Progress(trace.began, 32, 20, 64)] * 2
    timeline.first_scheduled = timeline.first_token = timeline.ended = trace.began
    trace.keep(timeline)
    trace.answer_began = trace.began
    trace.close(200)
    maker, count = SpanMaker("m"), 300
    encode_spans(maker.spans(trace))  # imports, and caches
    began = time.thread_time()
    for _ in range(count):
        encode_spans(maker.spans(trace)).SerializeToString()
    return 1000 * (time.thread_time() - began) / count


def share_table(shares: dict[str, float]) -> str:
    """As Markdown."""
    lines = ["Share of the engine's time, without HTTP:", "", "| observer | share |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {share:.2%} |" for name, share in shares.items())])


def table(runs: dict[str, list[float]]) -> str:
    """Medians, and the ratio to plain of each round."""
    lines = [
        "Output tokens per second; ratios are to `plain` in the same round.",
        "",
        "| kind | median | ratio, median | lowest | highest | limit |",
        "|---|---|---|---|---|---|",
    ]
    for kind, speeds in runs.items():
        ratios = [speed / plain for speed, plain in zip(speeds, runs["plain"])]
        limit = f"at least {1 - LIMITS[kind]:.2f}" if kind in LIMITS else ""
        lines.append(
            f"| {kind} | {statistics.median(speeds):.0f} | {statistics.median(ratios):.3f} |"
            f" {min(ratios):.3f} | {max(ratios):.3f} | {limit} |"
        )
    return "\n".join(lines)


@contextmanager
def scraped(url: str | None) -> Iterator[None]:
    """Ask for ``/metrics`` each second, more often than a Prometheus would by default."""
    enough = threading.Event()

    def scrape() -> None:
        with httpx.Client(trust_env=False, timeout=30) as client:
            while url is not None and not enough.wait(SCRAPE_SECONDS):
                client.get(url + "/metrics").raise_for_status()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@contextmanager
def running_collector() -> Iterator[str]:
    """The address of a collector in a process of its own."""
    port = free_port()
    process: subprocess.Popen[Any] = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    cyclopts.run(main)
