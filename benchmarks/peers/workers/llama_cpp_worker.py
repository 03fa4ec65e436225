"""llama.cpp by llama-cpp-python's low-level interface, batching as its own server does.

Prompts go through in batches of 512 tokens (its default micro-batch), then every step decodes one
token of each sequence. Tokens are chosen by numpy's argmax over the logits it returns.
"""

from __future__ import annotations

import argparse
import ctypes
import time

import llama_cpp
import numpy as np

from benchmarks.peers.workers.protocol import Clock, Prompts, serve

BATCH = 512
KV_TYPES = {
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the bindings do not name
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}


class Model:
    """A model and one context; all rounds use it, emptied in between."""

    def __init__(
        self, path: str, threads: int, sequences: int, tokens: int, kv_type: str = "f16"
    ) -> None:
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"error: llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * tokens, sequences
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES[kv_type]
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("error: llama.cpp cannot make a context")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)

    def decode(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run (token, position, sequence, wanted) entries; likeliest next tokens of wanted ones."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("error: llama_decode failed")
        return [self.choose(i, entry[2]) for i, entry in enumerate(entries) if entry[3]]

    def choose(self, row: int, sequence: int) -> int:
        """The next token of a sequence, whose logits are in this row of the batch."""
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512, help="room for each sequence")
    parser.add_argument("--kv-type", choices=KV_TYPES, default="f16")
    args = parser.parse_args()
    # Kept: the library calls it as long as it lives.
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    began = time.perf_counter()
    model = Model(args.model, args.threads, args.sequences, args.tokens, args.kv_type)
    seconds = time.perf_counter() - began

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        model.clear()
        entries = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        latest: list[int] = []
        for start in range(0, len(entries), BATCH):
            for token in model.decode(entries[start : start + BATCH]):
                clock.note(len(latest), [token])
                latest.append(token)
        for step in range(output_len - 1):
            rows = [(latest[i], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)]
            latest = model.decode(rows)
            for i, token in enumerate(latest):
                clock.note(i, [token])

    system = llama_cpp.llama_print_system_info().decode()
    serve("llama.cpp", llama_cpp.__version__, run, load_seconds=seconds, system=system)


if __name__ == "__main__":
    main()
