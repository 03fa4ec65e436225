"""LoRA adapters: which rows of a pass have one."""

from __future__ import annotations

from twostroke.engine.adapters.registry import adapter_digest
from twostroke.runtime.adapters.store import AdapterStore
from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun


class AdapterRows(PassHook):
    """Has the pass computed by a model with the adapters of its requests."""

    def __init__(self, store: AdapterStore) -> None:
        self.store = store

    def before(self, step: StepRun) -> None:
        digests = [adapter_digest(request.spec.adapter) for request in step.batch.requests]
        counts = [share.num_tokens for share in step.batch.shares]
        step.model = self.store.adapted(step.model, digests, counts)
