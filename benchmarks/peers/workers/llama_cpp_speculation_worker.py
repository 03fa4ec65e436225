"""llama.cpp with a draft model, by llama-cpp-python's low-level interface; one request at a time.

The bindings' own ``LlamaDraftModel`` quotes prompts only, so the loop is ``speculating.py``, that
of llama.cpp's ``speculative-simple``. Its default is 3 drafts.
"""

from __future__ import annotations

import argparse
import ctypes
from functools import partial

import llama_cpp

from benchmarks.peers.workers.llama_cpp_worker import Model
from benchmarks.peers.workers.protocol import Clock, Prompts, serve
from benchmarks.peers.workers.speculating import Entry, speculate

TOKENS = 1024


class OneSequence:
    """A model whose cache holds one sequence."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def decode(self, entries: list[Entry]) -> list[int]:
        """See ``Decodes``."""
        return self._model.decode(entries)

    def forget(self, start: int) -> None:
        """See ``Decodes``."""
        memory = llama_cpp.llama_get_memory(self._model.context)
        if not llama_cpp.llama_memory_seq_rm(memory, 0, start, -1):
            raise SystemExit("error: llama.cpp cannot drop a part of a sequence")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--draft", required=True, help="a GGUF file")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    # Kept: the library calls it as long as it lives.
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    models = [Model(path, args.threads, 1, TOKENS) for path in (args.model, args.draft)]
    target, draft = map(OneSequence, models)

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        for index, prompt in enumerate(prompts):
            for model in models:
                model.clear()
            speculate(target, draft, prompt, output_len, args.drafts, partial(clock.note, index))

    serve("llama.cpp", llama_cpp.__version__, run, drafts=args.drafts)


if __name__ == "__main__":
    main()
