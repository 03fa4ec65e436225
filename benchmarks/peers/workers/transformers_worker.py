"""transformers: ``generate`` over one batch, with its default attention and cache."""

from __future__ import annotations

import argparse

import torch
import transformers

from benchmarks.peers.workers.protocol import Clock, Prompts, serve


class Streamer:
    """Gets every step's tokens, the prompt first; the interface is ``BaseStreamer``'s."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._prompt = clock, True

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        for index, token in enumerate(value.tolist()):
            self._clock.note(index, [token])

    def end(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        with torch.inference_mode():
            model.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
                do_sample=False,
                min_new_tokens=output_len,
                max_new_tokens=output_len,
                pad_token_id=0,
                streamer=Streamer(clock),
            )

    serve("transformers", transformers.__version__, run, torch=torch.__version__)


if __name__ == "__main__":
    main()
