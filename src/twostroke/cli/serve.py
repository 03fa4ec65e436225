"""``twostroke serve``."""

from __future__ import annotations

from functools import partial

from twostroke.cli.flags import (
    CacheFlags,
    GatewayFlags,
    ModelFlags,
    ObservabilityFlags,
    SchedulerFlags,
    ServerFlags,
    engine_config,
)
from twostroke.server.options import ServerOptions


def serve(
    model: str | None = None,
    /,
    *,
    server: ServerFlags | None = None,
    gateway: GatewayFlags | None = None,
    model_options: ModelFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    observability: ObservabilityFlags | None = None,
) -> None:
    """Serve MODEL over OpenAI's HTTP API.

    The first Ctrl-C or SIGTERM lets running requests finish, the second ends at once.

    Args:
        model: `pilot` (embedded, the default), a local folder, or a Hugging Face Hub id; the same
            as --model.
    """
    from twostroke.server.process import run_server
    from twostroke.startup import start_async_engine

    config = engine_config(model, model_options, cache, scheduler, observability)
    options = server or ServerOptions()
    name = next(iter(options.served_model_name), None)
    load = partial(
        start_async_engine,
        max_queued_requests=options.max_queued_requests,
        served_model_name=name,
        stall_seconds=options.stall_timeout,
    )
    run_server(config, options, load, gateway)
