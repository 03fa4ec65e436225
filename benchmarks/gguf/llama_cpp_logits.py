"""Logits of GGUF files beside llama.cpp's, in two steps.

    /tmp/llama/bin/python benchmarks/gguf/llama_cpp_logits.py [--float32-cache] FILE...
    python -m benchmarks.gguf.llama_cpp_logits --compare FILE...

The first in the environment of llama.cpp (``benchmarks/peers/README.md``); it leaves its logits
beside each file. The second decodes the files to float32, so that what differs is what llama.cpp
rounds while it computes: activations to 8 bits, unless weights are in float32, and keys and values
to float16, unless it is told otherwise. Where tokens choose experts, such a difference may choose
another, and then it is no small one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

FLOAT32 = 0  # of ggml's formats
IDS = [(index * 37 + 11) % 250 + 1 for index in range(48)]


def record(path: Path, cache: int | None) -> None:
    """Run llama.cpp; ``cache`` is ggml's number of the format of keys and values."""
    import llama_cpp

    options = {"n_ctx": 64, "logits_all": True, "verbose": False, "n_threads": 1}
    model = llama_cpp.Llama(str(path), type_k=cache, type_v=cache, **options)
    model.eval(IDS)
    np.save(f"{path}.npy", np.array(model.scores[: len(IDS)], dtype=np.float32))


def compare(path: Path) -> None:
    """Print the largest difference, the mean divergence, and how often the likeliest is equal."""
    import torch

    from twostroke.checkpoints.open_checkpoint import open_checkpoint
    from twostroke.models.support import read_runnable
    from twostroke.runtime.reference import naive_logits
    from twostroke.runtime.weights import load_model

    checkpoint = open_checkpoint(path)
    spec = read_runnable(checkpoint)
    model = load_model(checkpoint, spec, "float32", torch.device("cpu"), len(IDS))
    ours, theirs = naive_logits(model, IDS), torch.from_numpy(np.load(f"{path}.npy"))
    log_ours, log_theirs = torch.log_softmax(ours, -1), torch.log_softmax(theirs, -1)
    divergence = (log_ours.exp() * (log_ours - log_theirs)).sum(-1).mean()
    equal = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
    print(
        f"{path.name}: at most {float((ours - theirs).abs().max()):.1e} of a deviation of"
        f" {float(ours.std()):.3f}, divergence {float(divergence):.1e}, likeliest token equal"
        f" {float(equal):.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("--compare", action="store_true", help="with the logits beside each file")
    parser.add_argument("--float32-cache", action="store_true", help="llama.cpp rounds no cache")
    options = parser.parse_args()
    for file in options.files:
        if options.compare:
            compare(file)
        else:
            record(file, FLOAT32 if options.float32_cache else None)


if __name__ == "__main__":
    main()
