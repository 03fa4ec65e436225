"""``twostroke route``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from twostroke.cli.flags import (
    GatewayFlags,
    RouterFlags,
    ServerFlags,
    TemplateFlags,
    engine_config,
)
from twostroke.core.errors import ConfigError
from twostroke.engine.workers.options import RouterOptions
from twostroke.server.options import SERVED, ServerOptions


def route(
    model: str | None = None,
    /,
    *,
    router: RouterFlags | None = None,
    server: ServerFlags | None = None,
    gateway: GatewayFlags | None = None,
    template: TemplateFlags | None = None,
) -> None:
    """Serve over HTTP what workers compute (twostroke worker), here or on other machines.

    Keys, limits and APIs are those of twostroke serve. A worker that ends, hangs or is cut off
    loses no request: it goes on in another with the same tokens. The router needs no torch.

    Args:
        model: The workers' model, of which the tokenizer is read here: `pilot` (embedded, the
            default), a local folder or GGUF file, or a Hugging Face Hub id.
    """
    from twostroke.core.network.proofs import read_token
    from twostroke.engine.process.handing_on import PrefillPlan
    from twostroke.observability.tracing.tracer import Tracer
    from twostroke.server.process import run_server
    from twostroke.server.state.loading_note import LoadingNote
    from twostroke.start_serving import connect_to_workers

    options, router = server or ServerOptions(), router or RouterOptions()
    check_options(options)
    config = engine_config(model, None, template=template)
    note = LoadingNote()
    name = next(iter(options.served_model_name), None) or config.model.model
    endpoint = options.otlp_traces_endpoint
    tracer = Tracer(endpoint, name, options.otlp_traces_slow_ttft)
    load = partial(
        connect_to_workers,
        workers=router.addresses,
        token=read_token(router.token_file),
        routing=options.routing,
        prefill=PrefillPlan(min_tokens=options.prefill_min_tokens),
        say=note.say,
        stall_seconds=options.stall_timeout,
        max_queued_requests=options.max_queued_requests,
        traces=tracer.of_engines,
    )
    # What is said of steps comes from workers, so no option of this process's engine is left.
    run_server(
        config,
        replace(options, engine_process=True),
        load,
        gateway,
        tracer if options.inspector or endpoint is not None else None,
        note=note,
    )


def check_options(options: ServerOptions) -> None:
    """Raise ConfigError for an option of ``serve`` that needs an engine of one's own."""
    for given, flag in (
        (options.engine_process, "--engine-process"),
        (options.data_parallel_size > 1, "--data-parallel-size"),
        (options.prefill_engines, "--prefill-engines"),
        (options.idle_unload is not None, "--idle-unload"),
        (options.kv_cache_share, "--kv-cache-share"),
        (options.context_ranker not in (None, SERVED), "--context-ranker MODEL"),
        (options.inspect_content, "--inspect-content"),
        (options.inspect_efficiencies is not None, "--inspect-efficiencies"),
    ):
        if given:
            raise ConfigError(
                f"{flag} needs an engine in this process, and a router has none",
                hint="leave it out, or use twostroke serve",
            )
