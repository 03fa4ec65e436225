"""How much of a request goes into a step, and how it grows by what the step made of it."""

from __future__ import annotations

from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import ScheduledRequest, StepResult
from twostroke.scheduling.stopping import append_until_stop

# Most tokens of a request in one step while its prompt's log-probabilities are computed: each takes
# logits over the whole vocabulary, and the whole step waits (256 rows of 150,000 are 150 MB).
SCORED_CHUNK = 256


def share_size(request: Request, left: int, chunk: int) -> int:
    """How many of a step's ``left`` tokens a running request gets, drafts included."""
    wanted = request.num_missing_tokens + len(request.draft_token_ids)
    vector = request.spec.vector
    if vector is not None and vector.whole_prompts:
        return wanted if wanted <= left else 0
    scored = vector is None and not request.reads_prefix_cache
    return min(wanted, left, chunk, SCORED_CHUNK if scored else chunk)


def take_result(
    request: Request, share: ScheduledRequest, result: StepResult, now: float
) -> RequestOutput | None:
    """Count what was computed and append what was sampled, up to the first token that ends it.

    Progress moves by what was accepted: keys and values of rejected drafts count for nothing, and
    later tokens overwrite them. Returns what the request got, if anything; an output with a
    ``finish_reason`` is its last.
    """
    request_id = request.request_id
    request.forget_assumed()
    if request_id in result.repeated:
        return None
    num_rejected = 0
    if share.draft_token_ids:
        num_accepted = result.num_accepted_drafts.get(request_id, 0)
        num_rejected = len(share.draft_token_ids) - num_accepted
    request.num_computed_tokens += share.num_tokens - num_rejected
    output = None
    if tokens := result.token_ids.get(request_id):
        tokens, stop = append_until_stop(request, tokens)
        if request.first_token_time is None:
            request.first_token_time = now
        output = make_output(request, tokens)
        if share.draft_token_ids:
            output.draft_token_ids = share.draft_token_ids
            num_accepted = len(share.draft_token_ids) - num_rejected
            output.num_accepted_drafts = min(num_accepted, len(tokens))
        if logprobs := result.logprobs.get(request_id):
            output.logprobs = logprobs[: len(tokens)]
        output.distribution = result.distributions.get(request_id)
        if stop:
            output.finish_reason, output.stop_reason = stop.reason, stop.token_id
            # Accepted drafts after the token that ends it are cut off.
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens)
    if vector := result.vectors.get(request_id):
        output = make_output(request, [], FinishReason.STOP)
        output.vector = vector
    if request_id in result.prompt_logprobs:
        output = output or make_output(request, [])
        scores = result.prompt_logprobs[request_id]
        output.prompt_logprobs = request.take_scores(scores, share.start)
    return output


def keep_drafts(request: Request, drafts: list[int]) -> None:
    """Drafts for a request's next step: as many as can be followed by one more token."""
    request.draft_token_ids = drafts[: request.max_total_tokens - request.num_tokens - 1]


def room_for_drafts(request: Request, num_tokens: int) -> int:
    """How many drafts of an answer of limited length can be of use after ``num_tokens`` more.

    The step may draw one more token than it computes, and the last token is never a draft: a pass
    that verifies drafts gives one token more than it accepts.
    """
    known = request.num_computed_tokens + num_tokens + 1
    return max(0, request.max_total_tokens - known - 1)
