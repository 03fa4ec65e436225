"""How soon drafts come: on a fresh engine, and after an answer that cannot be guessed.

    python -m benchmarks.speculation.recovery [MODEL]

Questions that pilot answers from memory, one after the other; an answer that is drawn at random in
place of one of them; questions again. Prints the tokens that were answered before the first drafts,
the share of guesses that came true, and tokens a pass, of each engine.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass

import cyclopts

from benchmarks.environment import OtherPrograms, environment, environment_text
from benchmarks.speculation.__main__ import encode
from benchmarks.speculation.rounds import engines
from benchmarks.speculation.tasks import questions
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine


@dataclass(slots=True)
class Answers:
    """Some answers, one after the other.

    Attributes:
        waited: Tokens before the first draft was checked; all where there was none.
    """

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    waited: int | None = None

    def __str__(self) -> str:
        waited = f"first drafts never in {self.tokens} tokens"
        if self.waited is not None:
            waited = f"first drafts after {self.waited} tokens"
        return (
            f"{waited}, {self.accepted} of {self.drafted} right,"
            f" {self.tokens / max(1, self.passes):.2f} tokens a pass"
        )


def main(
    model: str = "pilot",
    *,
    methods: tuple[str, ...] = ("medusa", "draft"),
    num_engines: int = 4,
    before: int = 5,
    after: int = 10,
    random_tokens: int = 200,
) -> None:
    """Print how soon drafts come.

    Args:
        model: One that answers as pilot does.
        methods: Of `--speculation`.
        num_engines: Fresh ones for each method.
        before: Questions before the random answer.
        after: And behind it.
        random_tokens: Of that answer.
    """
    other_programs = OtherPrograms()
    for method in methods:
        settings = {"speculative_config": json.dumps({"method": method})}
        for number in range(num_engines):
            with engines(model, {method: settings}, max_model_len=1024) as loaded:
                engine = loaded[method]
                asked = [encode(engine, one) for one in questions(number, before + after)]
                fresh = _answer(
                    engine, asked[:before], SamplingParams(temperature=0, max_tokens=200)
                )
                draw = random.Random(number)
                words = draw.choices(range(300, engine.info.vocab_size), k=64)
                wild = SamplingParams(
                    temperature=5.0, seed=number, max_tokens=random_tokens, ignore_eos=True
                )
                _answer(engine, [words], wild)
                again = _answer(
                    engine, asked[before:], SamplingParams(temperature=0, max_tokens=200)
                )
            print(f"{method} {number}, fresh: {fresh}")
            print(f"{method} {number}, after a random answer: {again}", flush=True)
    command = ["python", "-m", "benchmarks.speculation.recovery", *sys.argv[1:]]
    print(environment_text(environment(" ".join(command), other_programs.share())))


def _answer(engine: LLMEngine, prompts: list[list[int]], params: SamplingParams) -> Answers:
    done = Answers()
    for prompt in prompts:
        engine.submit(GenerationRequest(request_id="0", prompt_token_ids=prompt, params=params))
        while engine.has_work():
            for output in engine.step():
                raise_output_error(output)
                if output.draft_token_ids and done.waited is None:
                    done.waited = done.tokens
                done.tokens += len(output.token_ids)
                done.passes += bool(output.token_ids)
                done.drafted += len(output.draft_token_ids)
                done.accepted += output.num_accepted_drafts
    return done


if __name__ == "__main__":
    cyclopts.run(main)
