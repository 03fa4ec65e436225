"""From tokens to text: incremental detokenization and stop strings, per sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.observability.observer import ObservedStep
from twostroke.observability.profile import DETOKENISE, NO_PROFILE, Profiler
from twostroke.text.detokenizer import IncrementalDetokenizer
from twostroke.text.stop_strings import StopChecker, StopStrings
from twostroke.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _SampleText:
    request: Request
    detokenizer: IncrementalDetokenizer
    stops: StopChecker


class TextWriter:
    """The first observer: fills in the text of outputs, and ends requests at stop strings.

    Args:
        stop_request: Ends a request in the scheduler, because a stop string was found. Its last
            tokens, as many as it is told, come after the stop string and are dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_request: Callable[[Request, int], None],
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self._profiler = profiler
        self._tokenizer = tokenizer
        self._stop_request = stop_request
        self._samples: dict[tuple[str, int], _SampleText] = {}
        # Shared by all samples of all prompts of a call, for as long as one of them runs.
        self._stops: WeakValueDictionary[tuple[tuple[str, ...], bool], StopStrings]
        self._stops = WeakValueDictionary()

    def on_add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            params = request.params
            if not params.detokenize:
                continue
            sample = _SampleText(
                request,
                IncrementalDetokenizer(
                    self._tokenizer,
                    params.skip_special_tokens,
                    context_ids=request.spec.prompt_token_ids,
                ),
                StopChecker(self._stop_strings(params)),
            )
            self._samples[request.spec.parent_id, request.spec.index] = sample
            if request.num_output_tokens:  # resumed: its client has the text of these
                self._write(sample, make_output(request, request.output_token_ids))

    def on_step(self, step: ObservedStep) -> None:
        self.write(step.outputs)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self.write(outputs)

    def close(self) -> None:
        self._samples.clear()

    def write(self, outputs: Sequence[RequestOutput]) -> None:
        """Set the outputs' texts; mark those as finished that a stop string ends."""
        with self._profiler.measure(DETOKENISE):
            for output in outputs:
                sample = self._samples.get((output.request_id, output.index))
                if sample is not None:
                    self._write(sample, output)

    def _stop_strings(self, params: SamplingParams) -> StopStrings:
        key = tuple(params.stop), params.include_stop_str_in_output
        stops = self._stops.get(key)
        if stops is None:
            stops = self._stops[key] = StopStrings(*key)
        return stops

    def _write(self, sample: _SampleText, output: RequestOutput) -> None:
        """Token by token: a step may give several, and the first that completes a stop string ends
        the request."""
        ended = output.finish_reason is not None
        failed = output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)
        pieces = self._visible_tokens(sample, output)
        num_before = sample.request.num_answer_tokens - len(output.token_ids)
        for count, piece in enumerate(pieces, 1):
            text = sample.detokenizer.push(piece)
            if ended and count == len(pieces):
                text += sample.detokenizer.finish()
            may_stop = num_before + count >= sample.request.params.min_tokens and not failed
            visible, stop = sample.stops.push(text, may_stop)
            output.text += visible
            if stop is not None:
                self._stop(sample, output, stop, count)
                return
        if ended:
            output.text += sample.stops.flush()
            self._forget(output)

    def _stop(self, sample: _SampleText, output: RequestOutput, stop: str, count: int) -> None:
        """The first ``count`` tokens of an output complete a stop string."""
        output.finish_reason, output.stop_reason = FinishReason.STOP, stop
        num_dropped = max(0, len(output.token_ids) - count)
        output.token_ids = output.token_ids[:count]
        output.num_accepted_drafts = min(output.num_accepted_drafts, count)
        if output.logprobs is not None:
            output.logprobs = output.logprobs[:count]
        self._forget(output)
        self._stop_request(sample.request, num_dropped)

    def _forget(self, output: RequestOutput) -> None:
        self._samples.pop((output.request_id, output.index), None)

    @staticmethod
    def _visible_tokens(sample: _SampleText, output: RequestOutput) -> list[list[int]]:
        """For each new token, what of it is the answer's text; one empty piece if there is none.

        That is all but a token that stopped it, unless the client asked to keep that.
        """
        pieces = [[token] for token in output.token_ids] or [[]]
        stopped = output.finish_reason is FinishReason.STOP and output.token_ids
        if stopped and not sample.request.params.include_stop_str_in_output:
            pieces[-1] = []
        return pieces
