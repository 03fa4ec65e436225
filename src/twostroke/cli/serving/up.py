"""``twostroke up``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def up(
    *,
    config: Path,
    port: int | None = None,
    local: Annotated[bool, Parameter(negative="")] = True,
) -> None:
    """Serve a fleet: pools of replicas of one model or several, behind one address.

    Each replica is a process, which is started again when it ends; what it was doing goes on in
    another. SIGHUP reads the file again and replaces what has changed, without a lost request. The
    first Ctrl-C or SIGTERM lets running requests finish, the second ends at once.

    Args:
        config: The fleet's file, in TOML: keys are flags, see docs/reference/fleet.md.
        port: Port to listen on, instead of that in the file.
        local: The replicas are processes of this machine; nothing else is there yet.
    """
    from twostroke.cli.serving.fleet_file import read_fleet
    from twostroke.cli.serving.running_fleet import RunningFleet
    from twostroke.observability.tracing.call_book import CallBook
    from twostroke.observability.tracing.tracer import Tracer
    from twostroke.server.process import ModelToLoad, run_server

    file = read_fleet(config)
    options = file.server
    if port is not None:
        options = replace(options, port=port)
    fleet = RunningFleet(config, file)
    pools = {
        name: ModelToLoad(plan.config, fleet.loader(name)) for name, plan in file.pools.items()
    }
    name, first = next(iter(pools.items()))
    del pools[name]
    tracer = Tracer(None, name, None, calls=CallBook(keep_unwritten=False))
    run_server(
        first.config,
        replace(options, served_model_name=(name,), engine_process=True),
        first.load,
        file.gateway,
        tracer if options.inspector else None,
        beside=pools,
        reload=fleet.begin_reload,
    )
