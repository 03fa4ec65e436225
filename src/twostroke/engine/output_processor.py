"""From tokens to text: incremental detokenization and stop strings, per sample."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.text.detokenizer import IncrementalDetokenizer
from twostroke.text.stop_strings import StopChecker
from twostroke.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _TextState:
    request: Request
    detokenizer: IncrementalDetokenizer
    stops: StopChecker


class OutputProcessor:
    """Fills in the text of outputs, and finds those requests that a stop string ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._states: dict[tuple[str, int], _TextState] = {}

    def add(self, request: Request) -> None:
        params = request.params
        if params.detokenize:
            detokenizer = IncrementalDetokenizer(
                self._tokenizer, params.skip_special_tokens, context_ids=request.token_ids
            )
            stops = StopChecker(params.stop, params.include_stop_str_in_output)
            self._states[request.parent_id, request.index] = _TextState(request, detokenizer, stops)

    def remove(self, request: Request) -> None:
        self._states.pop((request.parent_id, request.index), None)

    def process(self, output: RequestOutput) -> Request | None:
        """Set the output's text; if a stop string ends it here, mark it finished so and return its
        request.
        """
        state = self._states.get((output.request_id, output.index))
        if state is None:
            return None
        running = output.finish_reason is None
        text = state.detokenizer.push(self._spoken(state, output))
        if not running:
            text += state.detokenizer.finish()
            self.remove(state.request)
        armed = state.request.num_output_tokens >= state.request.params.min_tokens
        armed = armed and output.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR)
        output.text, stop = state.stops.push(text, armed)
        if stop is not None:
            output.finish_reason, output.stop_reason = FinishReason.STOP, stop
            self.remove(state.request)
            return state.request
        if not running:
            output.text += state.stops.flush()
        return None

    @staticmethod
    def _spoken(state: _TextState, output: RequestOutput) -> list[int]:
        """The tokens whose text belongs to the answer: all but a token that stopped it, unless it
        is to be kept.
        """
        stopped = output.finish_reason is FinishReason.STOP and output.token_ids
        if stopped and not state.request.params.include_stop_str_in_output:
            return output.token_ids[:-1]
        return output.token_ids
