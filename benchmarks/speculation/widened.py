"""Makes a large checkpoint that computes exactly what pilot computes.

    python -m benchmarks.speculation.widened [OUT]

Speculation is for targets whose passes are bound by memory, with answers that mean something:
pilot's answers do, but its weights fit into a CPU's cache. So its weights are put into a model four
times as wide and three times as deep (306 M parameters instead of 7 M):

- Hidden states have pilot's values in front and zeros behind. Embeddings and the outputs of all
  branches are zero there.
- RMSNorm divides by the mean of squares, which zeros make four times smaller. A quarter of epsilon
  and half of the norm's weights undo that, and a power of two changes no digit. So the width grows
  by powers of four.
- Further heads and MLP columns have random weights. What they give is multiplied by zero.
- Pilot's layers are spread evenly: before each come two that add zero. So leaving early, after the
  first quarter, computes pilot's first two layers of eight and is not right by construction.

Every weight is read in every pass, the random ones and the zeros too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cyclopts
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from twostroke.core.sampling_params import SamplingParams
from twostroke.llm import LLM
from twostroke.model_spec.model_files import resolve_model

CHECKED_QUESTIONS, CHECKED_TOKENS = 8, 48
_WEIGHTS, _HEADS = "model.safetensors", "medusa_lm_head.safetensors"


@dataclass(frozen=True, slots=True)
class Widening:
    """How much larger the model becomes.

    Attributes:
        width: Times as many hidden values, heads and MLP columns: a power of four.
        depth: Times as many layers.
    """

    width: int = 4
    depth: int = 3

    def __post_init__(self) -> None:
        if self.width < 4 or self.width.bit_count() != 1 or self.width.bit_length() % 2 == 0:
            raise ValueError(f"the width grows by powers of four, not by {self.width}")
        if self.depth < 1:
            raise ValueError("the depth must be 1 or more")


def widen(source: Path, target: Path, by: Widening | None = None, seed: int = 0) -> int:
    """Write the large model of a Llama checkpoint with tied embeddings, or of Medusa heads.

    Args:
        source: Folder of a checkpoint, or of heads for one.
        target: Folder to make.
        seed: Of the weights whose products are multiplied by zero.

    Returns:
        Number of parameters.
    """
    by = by or Widening()
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    if (source / _HEADS).is_file():
        name, tensors = _HEADS, dict(_widened_heads(source / _HEADS, by))
    else:
        name, tensors = _WEIGHTS, dict(_widened_model(source / _WEIGHTS, config, by, seed))
        config = _widened_config(config, by)
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for path in source.iterdir():
        if path.name not in (name, "config.json", "training.json"):
            shutil.copy(path, target)
    save_file(tensors, target / name, metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in tensors.values())


def widened(source: str, by: Widening | None = None) -> Path:
    """The large model of an embedded one (or its Medusa heads), made once in the temporary folder.

    A folder that is complete is used again, as long as the weights are the same.
    """
    by, folder = by or Widening(), resolve_model(source)
    path = folder / (_HEADS if (folder / _HEADS).is_file() else _WEIGHTS)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    name = f"twostroke-widened-{Path(source).name}-{by.width}x{by.depth}-{digest}"
    target = Path(tempfile.gettempdir()) / name
    if not target.is_dir():
        part = Path(tempfile.mkdtemp(prefix="twostroke-widening-"))
        count = widen(folder, part, by)
        part.rename(target)
        print(f"made {target.name}: {count / 1e6:.1f} M parameters", file=sys.stderr, flush=True)
    return target


def _widened_config(config: dict[str, Any], by: Widening) -> dict[str, Any]:
    sizes = (
        *("hidden_size", "intermediate_size"),
        *("num_attention_heads", "num_key_value_heads"),
    )
    return {
        **config,
        **{name: config[name] * by.width for name in sizes},
        "num_hidden_layers": config["num_hidden_layers"] * by.depth,
        "rms_norm_eps": config["rms_norm_eps"] / by.width,
    }


def _widened_model(
    path: Path, config: dict[str, Any], by: Widening, seed: int
) -> Iterator[tuple[str, Tensor]]:
    if not config["tie_word_embeddings"]:
        raise ValueError("a head of its own would have to be widened as well")
    generator = torch.Generator().manual_seed(seed)
    width = by.width
    with safe_open(path, "pt") as weights:
        names = list(weights.keys())
        embedding = weights.get_tensor("model.embed_tokens.weight")
        yield "model.embed_tokens.weight", _placed(embedding, 1, width)
        yield "model.norm.weight", _widened_norm(weights.get_tensor("model.norm.weight"), width)
        for index in range(config["num_hidden_layers"] * by.depth):
            own, is_own = index // by.depth, index % by.depth == by.depth - 1
            for name in (name for name in names if name.startswith(f"model.layers.{own}.")):
                value = weights.get_tensor(name)
                kind = name.removeprefix(f"model.layers.{own}.")
                yield (
                    f"model.layers.{index}.{kind}",
                    _widened_part(kind, value, width, generator, is_own=is_own),
                )


def _widened_part(
    kind: str, value: Tensor, width: int, generator: torch.Generator, *, is_own: bool
) -> Tensor:
    """One tensor of a layer; of one that adds zero unless ``is_own``."""
    if value.ndim == 1:
        return _widened_norm(value if is_own else torch.ones_like(value), width)
    if kind in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):  # adds to the hidden state
        return _placed(value if is_own else torch.zeros_like(value), width, width)
    rows, columns = value.shape
    large = 0.02 * torch.randn(rows * width, columns * width, generator=generator)
    large = large.to(value.dtype)
    if is_own:
        large[:rows, :columns] = value
    return large


def _widened_heads(path: Path, by: Widening) -> Iterator[tuple[str, Tensor]]:
    """Each adds to the last hidden state what its layer makes of it, then scores the vocabulary."""
    with safe_open(path, "pt") as weights:
        for name in list(weights.keys()):
            value = weights.get_tensor(name)
            is_layer = ".linear." in name
            yield name, _placed(value, by.width if is_layer else 1, by.width)


def _widened_norm(weight: Tensor, width: int) -> Tensor:
    """Behind the values come ones, which meet zeros only."""
    large = torch.ones(len(weight) * width, dtype=weight.dtype)
    large[: len(weight)] = weight * width**-0.5
    return large


def _placed(value: Tensor, rows: int, columns: int) -> Tensor:
    """``value`` in front of zeros; a vector grows by ``rows``."""
    factors = (rows, columns)[: value.ndim]
    large = torch.zeros([n * factor for n, factor in zip(value.shape, factors)], dtype=value.dtype)
    large[tuple(slice(n) for n in value.shape)] = value
    return large


def check(small: str, large: str, prompts: list[str]) -> int:
    """Compare answers, greedy and sampled, token by token and score by score.

    Returns:
        How many tokens were compared.

    Raises:
        ValueError: One differs.
    """
    results = []
    for model in (small, large):
        with LLM(model, device="cpu", kv_cache_memory=2**28, max_model_len=512) as llm:
            chats = [llm.chat_prompt([{"role": "user", "content": text}]) for text in prompts]
            wanted = [
                SamplingParams(
                    temperature=(0.0, 0.7)[i % 2], seed=i, max_tokens=CHECKED_TOKENS, logprobs=1
                )
                for i in range(len(chats))
            ]
            outputs = [result.outputs[0] for result in llm.generate(chats, wanted)]
            results.append([(output.token_ids, output.logprobs) for output in outputs])
    for prompt, ours, theirs in zip(prompts, *results, strict=True):
        if ours != theirs:
            raise ValueError(f"the answers to {prompt!r} differ: {ours[0]} and {theirs[0]}")
    return sum(len(tokens) for tokens, _ in results[0])


def main(out: Path | None = None, *, model: str = "pilot") -> None:
    """Make the large model and check that it answers as the small one.

    Args:
        out: Folder; by default one in the temporary folder.
        model: What is widened: pilot, or another Llama with tied embeddings.
    """
    from training.bank import load_bank

    if out is None:
        out = widened(model)
    else:
        count = widen(resolve_model(model), out)
        print(f"{out}: {count / 1e6:.1f} M parameters", file=sys.stderr, flush=True)
    questions = [item.held_out[0] for item in load_bank().items[:CHECKED_QUESTIONS]]
    tokens = check(model, str(out), questions)
    print(f"{out}: {tokens} tokens and their log-probabilities are those of {model}")


if __name__ == "__main__":
    cyclopts.run(main)
