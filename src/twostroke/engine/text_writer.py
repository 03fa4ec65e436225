"""From tokens to text: incremental detokenization and stop strings, per sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.observability.observer import ObservedRun, ObservedStep
from twostroke.observability.profile import DETOKENISE, NO_PROFILE, Profiler
from twostroke.text.detokenizer import IncrementalDetokenizer
from twostroke.text.stop_strings import StopChecker
from twostroke.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _SampleText:
    request: Request
    detokenizer: IncrementalDetokenizer
    stops: StopChecker


class TextWriter:
    """The first observer: fills in the text of outputs, and ends requests at stop strings.

    Args:
        stop_request: Ends a request in the scheduler, because a stop string was found.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_request: Callable[[Request], None],
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self._profiler = profiler
        self._tokenizer = tokenizer
        self._stop_request = stop_request
        self._samples: dict[tuple[str, int], _SampleText] = {}

    def on_add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            params = request.params
            if params.detokenize:
                self._samples[request.parent_id, request.index] = _SampleText(
                    request,
                    IncrementalDetokenizer(
                        self._tokenizer, params.skip_special_tokens, context_ids=request.token_ids
                    ),
                    StopChecker(params.stop, params.include_stop_str_in_output),
                )

    def on_step(self, step: ObservedStep) -> None:
        self.write(step.outputs)

    def on_run(self, run: ObservedRun) -> None:
        raise NotImplementedError("steps that give text are taken one by one")

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

    def _write(self, sample: _SampleText, output: RequestOutput) -> None:
        ended = output.finish_reason is not None
        text = sample.detokenizer.push(self._visible_tokens(sample, output))
        if ended:
            text += sample.detokenizer.finish()
            self._forget(output)
        may_stop = sample.request.num_output_tokens >= sample.request.params.min_tokens
        failed = output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)
        output.text, stop = sample.stops.push(text, may_stop and not failed)
        if stop is not None:
            output.finish_reason, output.stop_reason = FinishReason.STOP, stop
            self._forget(output)
            self._stop_request(sample.request)
        elif ended:
            output.text += sample.stops.flush()

    def _forget(self, output: RequestOutput) -> None:
        self._samples.pop((output.request_id, output.index), None)

    @staticmethod
    def _visible_tokens(sample: _SampleText, output: RequestOutput) -> list[int]:
        """The tokens whose text belongs to the answer.

        That is all but a token that stopped it, unless the client asked to keep that.
        """
        stopped = output.finish_reason is FinishReason.STOP and output.token_ids
        if stopped and not sample.request.params.include_stop_str_in_output:
            return output.token_ids[:-1]
        return output.token_ids
