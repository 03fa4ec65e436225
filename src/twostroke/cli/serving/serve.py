"""``twostroke serve``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from twostroke.cli.flags import (
    CacheFlags,
    GatewayFlags,
    LoraFlags,
    ModelFlags,
    ObservabilityFlags,
    SchedulerFlags,
    ServerFlags,
    SpeculationFlags,
    TemplateFlags,
    TierFlags,
    engine_config,
)
from twostroke.core.errors import ConfigError
from twostroke.core.operator.named_models import configs_by_name, named_models, parse_shares
from twostroke.server.options import SERVED, ServerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from twostroke.core.config import ModelOptions
    from twostroke.engine.clients.loaded_model import LoadedModel
    from twostroke.engine.executor import ExecutorInfo
    from twostroke.inspector.content import ContentBook
    from twostroke.observability.observer import Observer
    from twostroke.observability.tracing.tracer import Tracer
    from twostroke.questions.model_facts import ModelFacts


def serve(
    *models: str,
    server: ServerFlags | None = None,
    gateway: GatewayFlags | None = None,
    model_options: ModelFlags | None = None,
    template: TemplateFlags | None = None,
    lora: LoraFlags | None = None,
    cache: CacheFlags | None = None,
    scheduler: SchedulerFlags | None = None,
    observability: ObservabilityFlags | None = None,
    speculation: SpeculationFlags | None = None,
    tiers: TierFlags | None = None,
) -> None:
    """Serve one model or several over OpenAI's HTTP API.

    The first Ctrl-C, SIGTERM or SIGHUP lets running requests finish, the second ends at once.

    Args:
        models: `pilot` (embedded, the default), a local folder or GGUF file, or a Hugging Face Hub
            id; the same as --model. Several are written NAME=MODEL, and requests name them; each
            has a process and a KV cache of its own. The first answers where none is named.
    """
    from twostroke.inspector.content import ContentBook
    from twostroke.observability.tracing.call_book import CallBook
    from twostroke.observability.tracing.tracer import Tracer
    from twostroke.server.process import ModelToLoad, run_server

    options, named = server or ServerOptions(), named_models(models)
    config = engine_config(
        next(iter(named.values()), None),
        *(model_options, cache, scheduler, observability, speculation, tiers, template, lora),
    )
    if config.model.tensor_parallel_size > 1:  # what ends or hangs there must not end the server
        options = replace(options, engine_process=True)
    options = with_names(options, named)
    shares = parse_shares(options.kv_cache_share, [name for name in named if name])
    configs = configs_by_name(config, named, shares) if len(named) > 1 else {}
    config = next(iter(configs.values()), config)
    name = next(iter(options.served_model_name), None) or config.model.model
    endpoint, slow = options.otlp_traces_endpoint, options.otlp_traces_slow_ttft
    records = config.observability.record is not None
    calls = CallBook(keep_unwritten=records)
    tracer = Tracer(endpoint, name, slow, calls=calls)
    content = ContentBook() if options.inspect_content and options.inspector else None
    load = model_loader(options, tracer, content, records=records)
    beside = {
        each: ModelToLoad(own, partial(load, served_model_name=each, take_calls=None))
        for each, own in list(configs.items())[1:]
    }
    load_ranker = ranker_loader(options)
    if options.inspect_efficiencies is not None:
        from twostroke.simulator.cost.shown_costs import measured_ceilings

        measured_ceilings(options.inspect_efficiencies)  # what is wrong with it is said now
    describe = partial(describe_model, config.model, options.inspect_efficiencies)
    traced = tracer if endpoint is not None or records or options.inspector else None
    run_server(config, options, load, gateway, traced, load_ranker, content, describe, beside)


def ranker_loader(options: ServerOptions) -> Callable[..., LoadedModel] | None:
    """What loads the model of ``--context-ranker``, if that is another."""
    from twostroke.start_serving import start_ranker

    ranker, seconds = options.context_ranker, options.stall_timeout
    if ranker is None or ranker == SERVED:
        return None
    apart = options.engine_process
    return partial(start_ranker, model=ranker, stall_seconds=seconds, engine_process=apart)


def with_names(options: ServerOptions, named: Mapping[str, str]) -> ServerOptions:
    """The options with what follows from the models' names.

    Raises:
        ConfigError: They contradict each other.
    """
    names = [name for name in named if name]
    if names and options.served_model_name:
        raise ConfigError(
            "NAME=MODEL gives the name, and --served-model-name another", hint="leave one out"
        )
    if options.prefill_engines and options.prefill_engines >= options.data_parallel_size:
        raise ConfigError(
            f"--prefill-engines {options.prefill_engines} leaves no engine to write answers",
            hint=f"--data-parallel-size {options.prefill_engines + 1} or more",
        )
    several = len(named) > 1
    if options.idle_unload is not None and not (several or options.engine_process):
        raise ConfigError(
            "--idle-unload ends the model's process, which is the server's", hint="--engine-process"
        )
    return replace(
        options,
        served_model_name=tuple(names[:1]) or options.served_model_name,
        engine_process=options.engine_process or several or options.data_parallel_size > 1,
    )


def model_loader(
    options: ServerOptions, tracer: Tracer, content: ContentBook | None, *, records: bool
) -> Callable[..., LoadedModel]:
    """What loads the model: on a thread of the server's process, or in one of its own.

    Args:
        records: Whether a recording gets the calls.

    Raises:
        ConfigError: An option needs the engine in the server's own process.
    """
    from twostroke.engine.process.handing_on import PrefillPlan
    from twostroke.start_serving import start_engine_process, start_model

    load = partial(
        start_engine_process if options.engine_process else start_model,
        max_queued_requests=options.max_queued_requests,
        served_model_name=next(iter(options.served_model_name), None),
        stall_seconds=options.stall_timeout,
        take_calls=tracer.calls.take if records else None,
    )
    if options.engine_process:
        check_engine_process(options)
        as_json = options.log_format == "json"
        own = {"log_level": options.log_level, "log_json": as_json}
        return partial(
            load,
            **own,
            idle_seconds=options.idle_unload,
            num_replicas=options.data_parallel_size,
            prefill=PrefillPlan(
                options.prefill_engines, options.prefill_min_tokens, options.prefill_memory
            ),
            routing=options.routing,
            traces=tracer.of_engines,
        )
    observers: list[Observer] = []
    if options.otlp_traces_endpoint is not None:
        observers.append(tracer.observer)
    if content is not None:
        observers.append(content)
    return partial(load, observers=observers)


def check_engine_process(options: ServerOptions) -> None:
    """Raise ConfigError for what needs the engine in the server's own process."""
    if options.inspect_content:
        raise ConfigError(
            "--inspect-content needs the engine in the server's process",
            hint="leave out what gives it one of its own: --engine-process,"
            " --data-parallel-size, --tensor-parallel-size",
        )


def describe_model(
    options: ModelOptions, efficiencies: Path | None, info: ExecutorInfo
) -> ModelFacts:
    """What the inspector shows of the loaded model; called when a page first asks.

    Raises:
        ConfigError: The file of efficiencies cannot be used.
        ModelLoadError: Its description cannot be read.
    """
    from twostroke.simulator.cost.shown_costs import facts_of_engine
    from twostroke.startup import make_speed_probe, name_of_device

    probe = partial(make_speed_probe, info.device)
    gpu = name_of_device(info.device)
    return facts_of_engine(options, info, probe, gpu=gpu, efficiencies=efficiencies)
