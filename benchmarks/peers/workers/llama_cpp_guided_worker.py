"""llama.cpp with a grammar, by llama-cpp-python's low-level interface.

Tokens are chosen as llama.cpp's own programs do: the likeliest one is tried against the grammar
alone, and only if that refuses it, all of the vocabulary goes through the grammar. Schemas become
grammars by the bindings' own converter.
"""

from __future__ import annotations

import argparse
import ctypes
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf

from benchmarks.peers.workers.llama_cpp_worker import BATCH, Model
from benchmarks.peers.workers.protocol import Clock, Prompts, serve


class Grammar:
    """The state of one answer."""

    def __init__(self, vocab: Any, text: str) -> None:
        self._sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        if not self._sampler:
            raise SystemExit("error: llama.cpp does not take the grammar")

    def choose(self, logits: np.ndarray) -> int:
        """The likeliest token that the grammar allows, and takes it in."""
        token = int(logits.argmax())
        if not np.isfinite(self._apply(np.array([token]), logits[[token]])[0]):
            token = int(self._apply(np.arange(len(logits)), logits).argmax())
        llama_cpp.llama_sampler_accept(self._sampler, token)
        return token

    def _apply(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """The logits, with those of refused tokens at minus infinity."""
        data = np.zeros(len(tokens), [("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
        data["id"], data["logit"] = tokens, logits
        held = llama_cpp.llama_token_data_array(
            data=data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data)),
            size=len(tokens),
            selected=-1,
            sorted=False,
        )
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(held))
        allowed: np.ndarray = data["logit"]
        return allowed

    def end(self) -> None:
        """Give it back."""
        llama_cpp.llama_sampler_free(self._sampler)


class GuidedModel(Model):
    """Its choices are those of a grammar for each sequence."""

    def __init__(self, path: str, threads: int, sequences: int, tokens: int) -> None:
        super().__init__(path, threads, sequences, tokens)
        self.grammars: list[Grammar] = []

    def start(self, count: int, text: str) -> None:
        """Begin so many answers."""
        self.clear()
        for grammar in self.grammars:
            grammar.end()
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.grammars = [Grammar(vocab, text) for _ in range(count)]

    def choose(self, row: int, sequence: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        return self.grammars[sequence].choose(np.ctypeslib.as_array(logits, (self.vocab,)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="a GGUF file with its vocabulary")
    parser.add_argument("--schema", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    # Kept: the library calls it as long as it lives.
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = GuidedModel(args.model, args.threads, args.sequences, args.tokens)
    grammar = json_schema_to_gbnf(args.schema)

    def run(prompts: Prompts, output_len: int, clock: Clock) -> None:
        model.start(len(prompts), grammar)
        latest = []
        for sequence, prompt in enumerate(prompts):
            assert len(prompt) <= BATCH
            rows = [(token, i, sequence, i == len(prompt) - 1) for i, token in enumerate(prompt)]
            latest += model.decode(rows)
            clock.note(sequence, latest[-1:])
        for step in range(output_len - 1):
            rows = [(latest[i], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)]
            latest = model.decode(rows)
            for i, token in enumerate(latest):
                clock.note(i, [token])

    serve("llama.cpp", llama_cpp.__version__, run)


if __name__ == "__main__":
    main()
