"""Writes the averaged weights as a Hugging Face checkpoint in bfloat16.

    python -m training.export

The result is src/twostroke/pilot/weights/pilot/ (or pilot-draft/): config, generation config,
safetensors, tokenizer, and training.json, which says what the weights were trained on.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from training.bank import load_bank
from training.model import EOS_ID, PAD_ID, ROPE_THETA, SIZES, make_model
from training.prepare import BANK_COPY, RUNS_DIR, TOKENIZER_DIR
from training.tokenizer import load_tokenizer, save_tokenizer

WEIGHTS_DIR = Path(__file__).parent.parent / "src" / "twostroke" / "pilot" / "weights"
# Recommended for sampling: a small model is surest of itself when it is not asked to be surprising.
TEMPERATURE = 0.3
PACKAGE_NAMES = {"pilot": "pilot", "draft": "pilot-draft"}


def training_record(state: dict[str, Any], parameters: int) -> dict[str, object]:
    """The facts of a run that belong beside its weights."""
    progress = state["progress"]
    return {
        "size": state["size"],
        "parameters": parameters,
        "minutes": round(progress["seconds"] / 60, 1),
        "steps": progress["step"],
        "tokens": progress["tokens"],
        "final_loss": round(progress["loss"], 4),
        "bank_digest": state["bank_digest"],
        "torch": torch.__version__,
        "history": progress["history"],
    }


def mean_of_falls(state: dict[str, Any]) -> dict[str, Tensor]:
    """The mean of what the last two falls of the rate settled on.

    Of an unfinished run, its moving average.

    Averaging at the ends of a cyclic schedule: Izmailov et al. 2018.
    """
    finished = state["progress"]["tokens"] >= state["million_tokens"] * 1e6
    ends: list[dict[str, Tensor]] = state["settled"][-2:] if finished else [state["average"]]
    return {name: torch.stack([end[name] for end in ends]).mean(0) for name in ends[0]}


def patch_config(path: Path) -> None:
    """Adds names that transformers 4 and others look for to those of transformers 5."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "rope_theta": ROPE_THETA,
        "model_type": "llama",
    }
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "bos_token_id": None,
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def export(checkpoint: Path, target: Path) -> int:
    """Converts one checkpoint; returns the size of the target directory in bytes."""
    state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if state["bank_digest"] != load_bank(BANK_COPY).digest:
        raise SystemExit(
            f"error: {checkpoint} was trained on another bank than {BANK_COPY}\n\nhint: prepare and"
            " train again"
        )
    model = make_model(state["size"], seed=0)
    model.load_state_dict(mean_of_falls(state), strict=False)  # Only the tied lm_head is absent.
    model.tie_weights()
    parameters = sum(p.numel() for p in model.parameters())
    return write_weights(model, target, training_record(state, parameters))


def write_weights(
    model: LlamaForCausalLM,
    target: Path,
    record: Mapping[str, object],
    tokenizer: Path = TOKENIZER_DIR,
) -> int:
    """Writes a model in bfloat16, with the tokenizer of a folder and `record`.

    Returns the size in bytes. The model is of no use for training afterwards.
    """
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        eos_token_id=EOS_ID, pad_token_id=PAD_ID, do_sample=True, temperature=TEMPERATURE
    )
    target.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()
    model.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)
    patch_config(target / "config.json")
    save_tokenizer(load_tokenizer(tokenizer), target)
    (target / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return sum(path.stat().st_size for path in target.iterdir())


def main() -> None:
    """Exports one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="pilot")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=None,
        help="by default training/runs/<size>/checkpoint.pt",
    )
    parser.add_argument(
        "--target", type=Path, default=None, help="by default the package's weights directory"
    )
    args = parser.parse_args()
    target = args.target or WEIGHTS_DIR / PACKAGE_NAMES[args.size]
    size = export(args.checkpoint or RUNS_DIR / args.size / "checkpoint.pt", target)
    print(f"{target}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
