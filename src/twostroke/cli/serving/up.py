"""``twostroke up``."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twostroke.core.errors import ConfigError

if TYPE_CHECKING:
    from twostroke.cli.serving.fleet_file import FleetFile
    from twostroke.engine.fleet.pool_plan import PoolPlan
    from twostroke.engine.fleet.supervised import SourceMaker
    from twostroke.engine.process.handshake import StartEngine


def up(
    *,
    config: Path,
    port: int | None = None,
    local: Annotated[bool, Parameter(negative="")] = False,
    ray: str | None = None,
    kuberay: str | None = None,
) -> None:
    """Serve a fleet: pools of replicas of one model or several, behind one address.

    Each replica is a process, which is started again when it ends; what it was doing goes on in
    another. SIGHUP reads the file again and replaces what has changed, without a lost request. The
    first Ctrl-C or SIGTERM lets running requests finish, the second ends at once.

    Args:
        config: The fleet's file, in TOML: keys are flags, see docs/reference/fleet.md.
        port: Port to listen on, instead of that in the file.
        local: The replicas are processes of this machine, started and watched by this command: the
            default.
        ray: Ray places the replicas: on the cluster at this address (HOST:PORT, or `auto` for that
            of this machine), or on one of this machine alone (`local`). Needs `pip install
            'twostroke[ray]'`.
        kuberay: Print the fleet as YAML for KubeRay's operator on Kubernetes, with this image, and
            start nothing.
    """
    from twostroke.cli.serving.fleet_file import read_fleet
    from twostroke.cli.serving.running_fleet import RunningFleet
    from twostroke.engine.fleet.supervised import local_source
    from twostroke.observability.tracing.tracer import Tracer
    from twostroke.server.process import run_server

    if local and ray is not None:
        raise ConfigError("--local and --ray cannot both be", hint="leave one of them out")
    file = read_fleet(config, by_ray=ray is not None or kuberay is not None)
    options = file.server
    if port is not None:
        options = replace(options, port=port)
    if kuberay is not None:
        from twostroke.cli.serving.kuberay import kuberay_values

        print(kuberay_values(config, file._replace(server=options), kuberay), end="")
        return
    make_source = local_source if ray is None else _ray_source(ray, file)
    name, endpoint = next(iter(file.models)), options.otlp_traces_endpoint
    tracer = Tracer(endpoint, name, options.otlp_traces_slow_ttft)
    traces = tracer.of_engines
    fleet = RunningFleet(config, file, make_source, traces, by_ray=ray is not None)
    models = fleet.to_load()
    first = models.pop(name)
    run_server(
        first.config,
        replace(options, served_model_name=(name,), engine_process=True),
        first.load,
        file.gateway,
        tracer if options.inspector or endpoint is not None else None,
        beside=models,
        reload=fleet.begin_reload,
    )


def _ray_source(address: str, file: FleetFile) -> SourceMaker:
    """Connect to Ray, and have it place replicas."""
    try:
        from twostroke.engine.fleet.ray_source import RayCluster, RaySource, Resources, on_ray
    except ImportError as error:
        message = f"Ray is not installed: {error}"
        raise ConfigError(message, hint="pip install 'twostroke[ray]'") from error
    sys.stdout = sys.stderr  # where Ray's threads write what its processes say; this has no data
    # One more of each pool: replicas that are replaced leave once their successors are ready.
    wanted = sum((plan.most + 1) * (plan.options.num_cpus or 1) for plan in file.pools.values())
    cluster = RayCluster(address, ceil(wanted))

    def make_source(settings: StartEngine, plan: PoolPlan) -> RaySource:
        resources = Resources.of(plan, cluster.has_gpus)
        settings = on_ray(settings, plan, resources, cluster.is_local)
        return RaySource(settings, cluster, resources)

    return make_source
