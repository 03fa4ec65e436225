"""The distribution that an answer's first token was drawn from, filter by filter."""

from __future__ import annotations

from twostroke.runtime.hooks.base import PassHook
from twostroke.runtime.step_run import StepRun
from twostroke.sampling.shaping import shaped_distribution


class Distributions(PassHook):
    """Explains the draws of requests that ask for it."""

    def after(self, step: StepRun) -> None:
        for request in step.batch.requests if step.raw_logits else ():
            request_id = request.request_id
            if (raw := step.raw_logits.get(request_id)) is None:
                continue
            masks = step.masks.get(request_id)
            step.result.distributions[request_id] = shaped_distribution(
                raw, request, step.result.token_ids[request_id][0], masks[0] if masks else None
            )
        if step.raw_logits:
            step.clock.mark("sample")
