"""A step's draws: one token for each request, and one more for each draft that equals its draw.

Drafts are guesses of the tokens after the last known one. The same pass computes them, so the
logits after each are those of the text that ends with it. The token of every position is drawn as
without drafts, by seed and position, and a draft is accepted if it is that token and all drafts
before it were accepted (docs/decisions/0013-drafts-are-accepted-by-equality.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from twostroke.core.errors import TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.runtime.input_batch import Batch
from twostroke.sampling.begun_draw import BegunDraw
from twostroke.sampling.report import NO_TOKEN, SamplerOutput
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.sampler import Sampler
from twostroke.sampling.token_masks import TokenMask

# How many of a request's drafts count as accepted: from its seed, its tokens, and their number.
Acceptance = Callable[[int, int, int], int]
# Logits that are drawn from at once, in elements: 64 MiB of float32.
MAX_LOGITS = 16 * 2**20
# On a GPU 512 MiB, where nothing but their maxima is made of them: fewer kernels are launched.
MAX_LOGITS_OF_GPU = 128 * 2**20


@dataclass(slots=True)
class Draw:
    """What one share of a step has drawn.

    Attributes:
        index: The share's index.
        token_ids: One more than were accepted, or, if the row after them failed, as many; then the
            next step draws from that row again, without drafts before it.
        non_finite: Whether its first row has NaN or +inf among its logits. Then nothing is drawn.
        error: Why nothing could be drawn from its first row.
        raw_logits: Logits of its first row, [1, vocab], where the distribution is asked for.
        bad_rows: Rows of the step, of drafts that were not reached, whose logits are not finite.
    """

    index: int
    token_ids: list[int]
    num_accepted: int
    logprobs: list[PositionLogprobs]
    non_finite: bool = False
    error: TwostrokeError | None = None
    bad_rows: Sequence[int] = ()
    raw_logits: Tensor | None = None


def rows_to_draw_from(batch: Batch) -> list[int] | None:
    """Rows of the step whose logits are drawn from, rising; ``None`` if all are."""
    rows = [row for index in batch.sampling for row in batch.drawn_rows(index)]
    return None if len(rows) == batch.query_start[-1] else rows


def begin_draws(
    batch: Batch,
    indices: Sequence[int],
    logits_of: Callable[[slice], Tensor],
    sampler: Sampler,
    masks: Mapping[str, Sequence[TokenMask]] = {},
) -> list[BegunDraw]:
    """Begin to draw for the shares ``indices`` of a step, in parts of bounded size, in order.

    Args:
        logits_of: Logits, float32 [rows, vocab], of some of the rows that belong to these shares;
            they are changed in place.
        masks: For requests whose answers have a form, the mask of the first of their rows.
    """
    states = list(_states(batch, indices))
    return _begin(states, logits_of, sampler, _masks_by_row(batch, indices, masks))


def verify_draws(
    batch: Batch,
    indices: Sequence[int],
    begun: Sequence[BegunDraw],
    accept: Acceptance | None = None,
) -> Iterator[Draw]:
    """Wait for what ``begin_draws`` has begun, and accept drafts.

    Args:
        accept: For measurements: decides on drafts, whatever is drawn.
    """
    output = _finish(begun)
    non_finite, row = set(output.non_finite), 0
    for index in indices:
        drafts = batch.shares[index].draft_token_ids
        if drafts:
            drawn = output.token_ids[row : row + 1 + len(drafts)]
            if accept is not None:
                drawn = _accept_anyway(accept, batch, index, drawn)
            result = _verify(batch, index, drawn, output, non_finite, row)
        else:
            token, logprobs = output.token_ids[row], output.logprobs.get(row)
            result = Draw(
                index,
                [] if token == NO_TOKEN else [token],
                0,
                [] if logprobs is None else [logprobs],
                row in non_finite,
                output.errors.get(row),
            )
        result.raw_logits = output.raw_logits.get(row)
        yield result
        row += 1 + len(drafts)


def _states(batch: Batch, indices: Sequence[int]) -> Iterator[RequestState]:
    """The request of each row as of that row: with the drafts before it."""
    for index in indices:
        state, drafts = batch.requests[index], batch.shares[index].draft_token_ids
        yield state
        for count in range(1, len(drafts) + 1):
            yield state.after(drafts[:count])


def _masks_by_row(
    batch: Batch, indices: Sequence[int], masks: Mapping[str, Sequence[TokenMask]]
) -> dict[int, TokenMask]:
    """Masks by the number of the row that is drawn from."""
    by_row: dict[int, TokenMask] = {}
    row = 0
    for index in indices if masks else ():
        share = batch.shares[index]
        by_row |= enumerate(masks.get(share.request_id, ()), row)
        row += 1 + len(share.draft_token_ids)
    return by_row


def _begin(
    states: Sequence[RequestState],
    logits_of: Callable[[slice], Tensor],
    sampler: Sampler,
    masks: Mapping[int, TokenMask],
) -> list[BegunDraw]:
    """Draw from all rows. No row's draw depends on other rows."""
    at_once = MAX_LOGITS
    if sampler.device.type == "cuda" and all(map(sampler.draws_in_place, states)):
        at_once = MAX_LOGITS_OF_GPU
    count = max(1, at_once // sampler.vocab_size)
    if len(states) <= count:
        return [sampler.begin(logits_of(slice(0, count)), states, masks)]
    begun = []
    for start in range(0, len(states), count):
        rows = slice(start, start + count)
        own = {row - start: mask for row, mask in masks.items() if rows.start <= row < rows.stop}
        begun.append(sampler.begin(logits_of(rows), states[rows], own))
    return begun


def _finish(begun: Sequence[BegunDraw]) -> SamplerOutput:
    """The output of all parts; rows count on from one to the next."""
    if len(begun) == 1:
        return begun[0].finish()
    whole = SamplerOutput([])
    for each in begun:
        start, part = len(whole.token_ids), each.finish()
        whole.token_ids += part.token_ids
        whole.logprobs |= {start + row: entry for row, entry in part.logprobs.items()}
        whole.raw_logits |= {start + row: raw for row, raw in part.raw_logits.items()}
        whole.errors |= {start + row: error for row, error in part.errors.items()}
        whole.non_finite += [start + row for row in part.non_finite]
    return whole


def _accept_anyway(accept: Acceptance, batch: Batch, index: int, drawn: list[int]) -> list[int]:
    """``drawn`` as if the model had drawn as many drafts as are to be accepted."""
    drafts, state = batch.shares[index].draft_token_ids, batch.requests[index]
    count = accept(state.spec.seed, state.num_tokens, len(drafts))
    return [*drafts[:count], *drawn[count:]]


def _verify(
    batch: Batch,
    index: int,
    drawn: Sequence[int],
    output: SamplerOutput,
    non_finite: set[int],
    first: int,
) -> Draw:
    """What a share with drafts has drawn; ``first`` is the row of the first of ``drawn``."""
    drafts, tokens = batch.shares[index].draft_token_ids, list[int]()
    for token, draft in zip(drawn, [*drafts, NO_TOKEN]):
        if token == NO_TOKEN:
            break
        tokens.append(token)
        if token != draft:
            break
    num_accepted = max(0, len(tokens) - 1)
    step_rows = batch.drawn_rows(index)
    reached = range(first, first + len(tokens))
    return Draw(
        index,
        tokens,
        num_accepted,
        [output.logprobs[row] for row in reached if row in output.logprobs],
        first in non_finite,
        output.errors.get(first),
        [step_rows[i] for i in range(1, len(step_rows)) if first + i in non_finite],
    )
