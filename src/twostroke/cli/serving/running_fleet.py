"""A fleet that serves: its pools, and what becomes of them when its file has changed."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

from twostroke.checkpoints.open_checkpoint import find_checkpoint
from twostroke.cli.serving.fleet_file import FleetFile, read_fleet
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError, TwostrokeError
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.fleet.engine_pool import EnginePool
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.supervised import SourceMaker
from twostroke.engine.process.handing_on import PrefillPlan
from twostroke.engine.workers.fingerprint import vocabulary_hash
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.server.process import ModelToLoad
from twostroke.start_serving import start_pool
from twostroke.startup import load_tokenizer
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class RunningFleet:
    """The models of one file, by name, each with its pools; it is there once it has been loaded.

    Args:
        make_source: Makes what starts a replica.
        traces: Follows traced calls, if some are.
        by_ray: Whether Ray places them.
    """

    def __init__(
        self,
        path: Path,
        file: FleetFile,
        make_source: SourceMaker,
        traces: EngineTraces | None,
        *,
        by_ray: bool,
    ) -> None:
        self._path, self._file, self._traces = path, file, traces
        self._make_source, self._by_ray = make_source, by_ray
        self._models: dict[str, tuple[EnginePool, Tokenizer]] = {}
        self._reloading = threading.Lock()

    def to_load(self) -> dict[str, ModelToLoad]:
        """What starts the pools of each model."""
        return {
            name: ModelToLoad(next(iter(plans.values())).config, partial(self._load, name))
            for name, plans in self._file.models.items()
        }

    def begin_reload(self) -> None:
        """Read the file again, on a thread of its own: it may have to look at a model."""
        threading.Thread(target=self._reload, name="twostroke-reload", daemon=True).start()

    def _load(self, name: str, config: EngineConfig) -> LoadedModel:
        options = self._file.server
        plans = {pool: self._keyed(plan) for pool, plan in self._file.models[name].items()}
        loaded = start_pool(
            config,
            name=name,
            plans=plans,
            prompts=PrefillPlan(min_tokens=options.prefill_min_tokens),
            routing=options.routing,
            make_source=self._make_source,
            log_level=options.log_level,
            log_json=options.log_format == "json",
            stall_seconds=options.stall_timeout,
            max_queued_requests=options.max_queued_requests,
            traces=self._traces,
        )
        assert isinstance(loaded.client, EnginePool)
        self._models[name] = loaded.client, loaded.tokenizer
        return loaded

    def _reload(self) -> None:
        with self._reloading:
            try:
                file = read_fleet(self._path, by_ray=self._by_ray)
                self._check(file)
                models = {
                    model: {name: self._checked(model, name, plan) for name, plan in plans.items()}
                    for model, plans in file.models.items()
                }
            except TwostrokeError as error:
                hint = f" (hint: {error.hint})" if error.hint else ""
                logger.error("the fleet stays as it was: %s%s", error, hint)
                return
            except Exception:  # a library's own, for a file that it cannot make sense of
                logger.exception("the fleet stays as it was")
                return
            self._file = file
            for model, plans in models.items():
                self._models[model][0].update(plans)
            logger.info("the fleet is as %s says, or comes to be", self._path)

    def _check(self, file: FleetFile) -> None:
        """Raise ConfigError for a change that a running server cannot follow."""
        if len(self._models) < len(self._file.models):
            hint = "send SIGHUP again once it is ready"
            raise ConfigError(f"{self._path}: the fleet is still loading", hint=hint)
        hint = "end it and start it again, or undo that change"
        if (file.server, file.gateway) != (self._file.server, self._file.gateway):
            raise ConfigError(
                f"{self._path}: [server] has changed, which needs a restart", hint=hint
            )
        changed = file.pools.keys() ^ self._file.pools.keys()
        if changed:
            message = f"{self._path}: pools come and go with a restart alone: {', '.join(changed)}"
            raise ConfigError(message, hint=hint)
        if {name: list(plans) for name, plans in file.models.items()} != {
            name: list(plans) for name, plans in self._file.models.items()
        }:
            message = f"{self._path}: served-model-name of a pool has changed, or their order"
            raise ConfigError(message, hint=hint)

    def _keyed(self, plan: PoolPlan) -> PoolPlan:
        """The plan as the server's keys want it, if there are some."""
        return plan.for_keys() if self._file.gateway.has_keys else plan

    def _checked(self, model: str, name: str, plan: PoolPlan) -> PoolPlan:
        """The plan as the server's keys want it; its model must be read by the same tokenizer."""
        pool, tokenizer = self._models[model]
        config, plan = plan.config, self._keyed(plan)
        former = pool.keepers[name].plan.config
        if (config.model, config.chat) != (former.model, former.chat):
            checkpoint = find_checkpoint(config.model.model, config.model.revision)
            other = load_tokenizer(checkpoint, config.chat)
            same = vocabulary_hash(other) == vocabulary_hash(tokenizer)
            if not same or other.chat_templates != tokenizer.chat_templates:
                raise ConfigError(
                    f"pool {name}: {config.model.model} has another vocabulary or chat template,"
                    " which the server reads at its start",
                    hint="end it and start it again, or give it a pool of its own",
                )
        return plan
