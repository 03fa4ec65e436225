"""``twostroke inspect``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from twostroke.core.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.types import ASGIApp

    from twostroke.questions.model_facts import ModelFacts

from twostroke.server.options import ServerOptions


def inspect(
    recording: Path,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    model: str | None = None,
    gpu: str | None = None,
    efficiencies: Path | None = None,
    allowed_hosts: tuple[str, ...] = (),
    html: Path | None = None,
) -> None:
    """Look at a recording in the browser: play, pause, step, and ask why.

    Ctrl-C ends it.

    Args:
        recording: What `twostroke serve --record FILE` or `twostroke simulate --record FILE` wrote;
            of several replicas the file that ends in `.fleet.jsonl`.
        host: Address to listen on.
        port: Port to listen on; by default a free one.
        model: The model that was recorded, for its layers and the roofline.
        gpu: The device that it ran on: a hardware sheet by name, or one of your own (.toml).
        efficiencies: A file of twostroke calibrate, for estimates of that device.
        allowed_hosts: Name under which browsers may address the page (repeat the flag for more; *
            is any); by default localhost and addresses.
        html: Write the page and the recording into this file, which needs no server, and end.
    """
    facts = None
    if model is not None:
        from twostroke.simulator.cost.shown_costs import facts_of_recording

        facts = facts_of_recording(model, gpu, efficiencies)
    elif gpu is not None or efficiencies is not None:
        raise ConfigError(
            "--gpu and --efficiencies say nothing without a model", hint="give --model too"
        )
    if html is not None:
        write_page(recording, html, facts)
        return
    options = ServerOptions(host=host, port=port, allowed_hosts=allowed_hosts)
    show(recording, "recording", recording.name, options, facts=facts)


def write_page(recording: Path, path: Path, facts: ModelFacts | None = None) -> None:
    """Write a recording as one HTML file.

    Args:
        facts: The model whose steps these are, if it is known.

    Raises:
        ConfigError: A file cannot be read or written, or it is of several replicas.
    """
    from twostroke.inspector.kept.page import kept_page
    from twostroke.inspector.recording import Recording
    from twostroke.observability.fleet_file import is_fleet_file

    if is_fleet_file(recording):
        raise ConfigError(
            f"{recording} is of several replicas", hint="give the recording of one of them"
        )
    source = Recording(recording, "recording", recording.name)
    try:
        text, steps = kept_page(source, facts)
    finally:
        source.close()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    left_out = source.num_steps - steps
    more = f"; {left_out} earlier ones found no room" if left_out else ""
    print(f"{steps} {'step' if steps == 1 else 'steps'} in {path}{more}", file=sys.stderr)


def show(
    path: Path,
    kind: Literal["recording", "simulation"],
    name: str,
    options: ServerOptions,
    configuration: Mapping[str, object] | None = None,
    facts: ModelFacts | None = None,
    more: Sequence[APIRouter] = (),
) -> None:
    """Serve the page over a recording, or over all that a fleet's file names, until Ctrl-C.

    Its address goes to stdout.

    Args:
        configuration: The engine's, where it is known.
        facts: The model whose steps these are, if it is known.
        more: Routes beside those over the recording.

    Raises:
        ConfigError: A file cannot be read, or the address not be bound.
    """
    from twostroke.inspector.fleet.recorded_fleet import RecordedFleet
    from twostroke.inspector.recording import Recording
    from twostroke.observability.fleet_file import is_fleet_file
    from twostroke.server.inspecting import create_inspecting_app, fleet_app, serving

    with ExitStack() as opened:
        app: ASGIApp
        if is_fleet_file(path):
            fleet = RecordedFleet(path, kind, name, configuration)
            opened.callback(fleet.close)
            app, extent = fleet_app(fleet, *more, facts=facts), f"{len(fleet.replicas)} replicas"
        else:
            source = Recording(path, kind, name, configuration)
            opened.callback(source.close)
            app = create_inspecting_app(source, *more, facts=facts)
            extent = f"{source.num_steps} steps"
        server, listener, address = serving(app, options)
        print(f"{extent} of {name}; Ctrl-C ends", file=sys.stderr)
        print(address, flush=True)
        server.run(sockets=[listener])
