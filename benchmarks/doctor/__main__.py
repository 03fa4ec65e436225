"""Makes faults, asks the doctor, does what it says; writes benchmarks/results/doctor.md.

    python -m benchmarks.doctor

Fifteen minutes of two cores. The simulated faults have no live direction; the live ones run twice,
the second time as advised.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import cyclopts

from benchmarks.doctor.live_faults import LIVE_FAULTS, LiveFault, LiveRun, run_live
from benchmarks.doctor.simulated_faults import SIMULATED_FAULTS
from benchmarks.environment import ROOT, environment, environment_text, write_record
from twostroke.doctor.diagnose import Diagnosis, diagnose
from twostroke.doctor.figures import Figure, RequestTimes, duration
from twostroke.doctor.proof import TriedLever

RECORD = ROOT / "benchmarks" / "results" / "doctor"
COMMAND = "python -m benchmarks.doctor"
PORT = 18_950
# A figure that moves by less has not moved.
STILL = 0.03


@dataclass(frozen=True)
class Row:
    """One fault: what was said of it, and what came of the advice.

    Attributes:
        first: The cause that was named first.
        is_right: Whether that is the fault.
        beside: The first cause but ``machine``: other programs share these cores, and the doctor
            says so.
        is_right_beside: Whether that is the fault.
        advice: The lever; empty if there was none.
        live: The figure before and after in live runs; for simulated faults empty.
    """

    fault: str
    first: str
    share: float
    is_right: bool
    beside: str = ""
    is_right_beside: bool = False
    advice: str = ""
    predicted: str = ""
    live: str = ""
    as_predicted: bool | None = None


def main(*faults: str) -> None:
    """Run faults, write their report.

    Args:
        faults: Names of live faults; by default all. Those of the simulator are always run.
    """
    names = [fault.name for fault in LIVE_FAULTS]
    if unknown := set(faults) - set(names):
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    live = []
    with TemporaryDirectory(prefix="doctor-") as folder:
        block_bytes = run_live(LIVE_FAULTS[-1], Path(folder), PORT, 0).block_bytes
        for fault in LIVE_FAULTS:
            if faults and fault.name not in faults:
                continue
            live.append(live_row(fault, Path(folder), block_bytes))
            print(live[-1], file=sys.stderr, flush=True)
    simulated = [simulated_row(number) for number in range(len(SIMULATED_FAULTS))]
    where = environment(COMMAND, None)
    text = report(simulated, live) + environment_text(where)
    record = {
        "environment": where,
        "simulated": [asdict(row) for row in simulated],
        "live": [asdict(row) for row in live],
    }
    write_record(RECORD, "The doctor on faults made on purpose", text, record)
    print(text)


def simulated_row(number: int) -> Row:
    """One fault of the simulator."""
    fault = SIMULATED_FAULTS[number]
    found = diagnose(fault.windows(), fleet=fault.fleet)
    row = _row(fault.name, found, fault.causes)
    print(row, file=sys.stderr, flush=True)
    return row


def live_row(fault: LiveFault, folder: Path, block_bytes: int) -> Row:
    """One fault of a server: diagnosed, treated, and measured again."""
    before = run_live(fault, folder, PORT, block_bytes)
    found = diagnose(before.windows, fleet=before.fleet, block_bytes=before.block_bytes)
    row = _row(fault.name, found, fault.causes)
    proof = _first_advice(found, fault.causes)
    if proof is None:
        return row
    row = _advised(row, proof)
    treated = treat(fault, proof)
    if treated is None:
        return row
    after = run_live(treated, folder, PORT, block_bytes)
    figure = proof.main.figure
    was, now = measure(figure, before, proof), measure(figure, after, proof)
    saved = 1 - now / was if was else 0.0
    return replace(
        row,
        live=f"{duration(was)} -> {duration(now)}",
        as_predicted=saved > STILL,
    )


def treat(fault: LiveFault, proof: TriedLever) -> LiveFault | None:
    """The fault's server as advised; ``None`` where that is more than a flag."""
    words = proof.lever.command.split()
    if proof.lever.setting.steady:
        return replace(fault, thieves=0)
    if words[0] == "--kv-cache-memory":
        return replace(fault, kv_blocks=proof.lever.setting.num_blocks)
    if words[0] == "leave":
        kept = tuple(flag for flag in fault.flags if not flag.startswith(("--specul", "{")))
        return replace(fault, flags=kept)
    if not words[0].startswith("--"):
        return None
    flags = list(fault.flags)
    if words[0] in flags:
        place = flags.index(words[0])
        del flags[place : place + 2]
    return replace(fault, flags=(*flags, *words))


def measure(figure: Figure, run: LiveRun, proof: TriedLever) -> float:
    """A figure of a live run; for a hot key that of the other keys."""
    requests = [request for window in run.windows for request in window.requests]
    if proof.cause == "one-key":
        work: dict[str, int] = {}
        for request in requests:
            work[request.tenant] = work.get(request.tenant, 0) + request.prompt + request.output
        hot = max(work, key=lambda tenant: work[tenant])
        requests = [request for request in requests if request.tenant != hot]
    times = [
        RequestTimes(r.arrival, r.token_times[0], r.token_times[-1], tuple(r.gaps))
        for r in requests
        if r.token_times
    ]
    return figure.of(times)


def _first_advice(found: Diagnosis, causes: Sequence[str]) -> TriedLever | None:
    """The first advice that is no demand for a calm machine, unless that is what is missing."""
    usable = (
        proof
        for proof in found.tried.advice
        if "machine" in causes or not proof.lever.setting.steady
    )
    return next(usable, None)


def _row(name: str, found: Diagnosis, causes: Sequence[str]) -> Row:
    first, proof = found.causes[0], _first_advice(found, causes)
    row = Row(name, first.name, first.share, first.name in causes)
    beside = next((c.name for c in found.causes if c.name != "machine"), "")
    row = replace(row, beside=beside, is_right_beside=row.is_right or beside in causes)
    return row if proof is None else _advised(row, proof)


def _advised(row: Row, proof: TriedLever) -> Row:
    main = proof.main
    predicted = f"{main.figure.name} {duration(main.before)} -> {duration(main.after)}"
    return replace(row, advice=proof.lever.command, predicted=predicted)


def report(simulated: Sequence[Row], live: Sequence[Row]) -> str:
    """Two tables and their sums."""
    told = [row for row in live if row.as_predicted is not None]
    lines = [
        f"Live: the right cause first in {sum(r.is_right for r in live)} of {len(live)} faults, and"
        f" in {sum(r.is_right_beside for r in live)} beside what other programs",
        "on the cores add.",
        "Where a lever was advised, the live figure moved as predicted in"
        f" {sum(bool(r.as_predicted) for r in told)} of {len(told)}.",
        "",
        f"Simulated: the right cause first in {sum(r.is_right for r in simulated)} of"
        f" {len(simulated)}.",
        "",
        "## Live, pilot on two cores",
        "",
        *_table(live, live=True),
        "",
        "## Simulated",
        "",
        *_table(simulated, live=False),
        "",
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row], *, live: bool) -> list[str]:
    """A heading for each fault would be long: a list of short lines reads better than wide rows."""
    lines = []
    for row in rows:
        right = "right" if row.is_right else "WRONG"
        lines.append(f"- **{row.fault}**: {row.first} ({row.share:.0%}), {right}.")
        if row.beside != row.first:
            right = "right" if row.is_right_beside else "WRONG"
            lines.append(f"  Beside the machine: {row.beside}, {right}.")
        if row.advice:
            lines.append(f"  {row.advice}.")
            lines.append(f"  Predicted: {row.predicted}.")
        if live and row.live:
            said = "as predicted" if row.as_predicted else "NOT as predicted"
            lines.append(f"  Live: {row.live}, {said}.")
    return lines


if __name__ == "__main__":
    cyclopts.run(main)
