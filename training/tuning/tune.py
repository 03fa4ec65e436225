"""Goes on with trained weights: tools, and early exits that guess well.

    python -m training.tuning.tune

Each step learns from two batches: conversations about the bank, on which pilot also has to agree
with the weights that it began with, and conversations with tools. Beside the text, the first layers
alone have to guess it (LayerSkip, Elhoushi et al. 2024). A stopped run goes on from its last
checkpoint (`training/runs/tuning.pt`); remove that to begin again.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from training.bank import BANK_DIR, Bank, load_bank
from training.conversations import ConversationBuilder
from training.data import BatchSource
from training.evaluate import weights_digest
from training.export import WEIGHTS_DIR, write_weights
from training.model import make_model
from training.prepare import BANK_COPY, RUNS_DIR
from training.tokenizer import load_tokenizer
from training.train import EMA_DECAY, make_optimizers
from training.tuning.losses import Losses, tuning_losses
from training.tuning.tool_calls import ToolConversations

MILLION_TOKENS, PEAK_LR, WARM_UP, FINAL_LR = 5.0, 5e-4, 0.02, 0.02
BANK_BATCH, TOOL_BATCH = 1024, 1536  # Padded tokens.
# The examples of the bank are those of training's last stage.
LAST_STAGE = 0.95
EXIT_LAYER = 2  # A quarter, which `--speculation early-exit` takes by default.
KEPT, EXIT = 1.0, 0.3  # Weights of the losses beside the text's.
TUNED_DIR, CHECKPOINT = RUNS_DIR / "tuned", RUNS_DIR / "tuning.pt"
LOG_SECONDS, SAVE_SECONDS = 20.0, 180.0


def load_weights(folder: Path) -> LlamaForCausalLM:
    """An exported checkpoint in float32."""
    model = make_model(read_record(folder)["size"], seed=0)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({n: t.float() for n, t in weights.items()}, strict=False)
    model.tie_weights()
    return model


def read_record(folder: Path) -> dict[str, Any]:
    """What is known of the training of an exported checkpoint."""
    record: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return record


def load_copied_bank() -> Bank:
    """The bank as `prepare` copied it, or as it is."""
    return load_bank(BANK_COPY if BANK_COPY.exists() else BANK_DIR)


def learning_rate(fraction: float, peak: float) -> float:
    """Warm-up, then a linear fall to nearly nothing."""
    if fraction < WARM_UP:
        return peak * fraction / WARM_UP
    return peak * max(FINAL_LR, 1 - (fraction - WARM_UP) / (1 - WARM_UP))


class Tuner:
    """One run."""

    def __init__(
        self,
        base: Path,
        target: Path,
        million_tokens: float,
        seed: int,
        minutes: float = math.inf,
        checkpoint: Path = CHECKPOINT,
        start: Path | None = None,
        kept: float = KEPT,
        peak_lr: float = PEAK_LR,
    ) -> None:
        self.base_digest, self.checkpoint = weights_digest(base), checkpoint
        bank, tokenizer = load_copied_bank(), load_tokenizer(base)
        builder = ConversationBuilder(bank)
        self.bank_source = BatchSource(bank, tokenizer, seed, BANK_BATCH)
        tools = ToolConversations(builder)
        self.tool_source = BatchSource(bank, tokenizer, seed + 1, TOOL_BATCH, builder=tools)
        self.base, self.model = load_weights(base).eval(), load_weights(start or base)
        self.kept, self.peak_lr = kept, peak_lr
        self.optimizers = make_optimizers(self.model, "adamw", peak_lr)
        self.average = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.record, self.tokenizer_dir = read_record(base), base
        self.target, self.total, self.most_seconds = target, million_tokens * 1e6, 60 * minutes
        self.tokens = self.step_number = 0
        self.seconds = 0.0

    def fraction(self) -> float:
        """How far the schedule has come, in [0, 1]."""
        return min(1.0, max(self.tokens / self.total, self.seconds / self.most_seconds))

    def step(self) -> list[Losses]:
        """One optimiser step, from a batch of either kind."""
        fraction = self.fraction()
        for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
            group["lr"] = learning_rate(fraction, self.peak_lr)
        self.model.train()
        found = []
        for source, base in ((self.bank_source, self.base), (self.tool_source, None)):
            batch = source.next(LAST_STAGE)
            while not batch.has_loss.any():  # Answers left out altogether, for the chooser alone.
                batch = source.next(LAST_STAGE)
            with torch.autocast("cpu", torch.bfloat16):
                losses = tuning_losses(self.model, batch, EXIT_LAYER, base)
                loss = losses.text + self.kept * losses.kept + EXIT * losses.exit
            loss.backward()  # type: ignore[no-untyped-call]
            self.tokens += batch.ids.numel()
            found.append(Losses(*(each.detach() for each in losses)))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        decay = min(EMA_DECAY, self.step_number / (self.step_number + 10))
        current = [p.detach() for p in self.model.parameters()]
        torch._foreach_lerp_(list(self.average.values()), current, 1 - decay)
        self.step_number += 1
        return found

    def run(self) -> None:
        """Until the tokens are seen, then writes the averaged weights."""
        logged = saved = self.seconds
        while self.fraction() < 1:
            begun = time.perf_counter()
            losses = self.step()
            self.seconds += time.perf_counter() - begun
            if self.seconds - logged >= LOG_SECONDS:
                logged = self.seconds
                shown = "  ".join(
                    f"{kind} " + " ".join(f"{value.item():.3f}" for value in each)
                    for kind, each in zip(("bank", "tools"), losses, strict=True)
                )
                speed = self.tokens / self.seconds
                left = self.seconds / 60 * (1 / self.fraction() - 1)
                print(
                    f"step {self.step_number:5d}  {self.seconds / 60:5.1f} min  {shown}"
                    f"  {speed:5.0f} tok/s  eta {left:4.1f} min",
                    flush=True,
                )
            if self.seconds - saved >= SAVE_SECONDS:
                saved = self.seconds
                self.save_checkpoint()
        self.save_checkpoint()
        self.save()

    def resume(self) -> bool:
        """Goes on from the checkpoint, if there is one that began with the same weights."""
        if not self.checkpoint.exists():
            return False
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        if (state["base_digest"], state["total"]) != (self.base_digest, self.total):
            raise SystemExit(
                f"error: {self.checkpoint} began with other weights or has another schedule\n\n"
                "hint: move it away, then tune again"
            )
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.bank_source.restore(state["sources"][0])
        self.tool_source.restore(state["sources"][1])
        self.tokens, self.step_number, self.seconds = state["progress"]
        torch.set_rng_state(state["torch_rng"])
        return True

    def save_checkpoint(self) -> None:
        """Writes all that a run needs to go on, aside first."""
        state = {
            "base_digest": self.base_digest,
            "total": self.total,
            "model": self.model.state_dict(),
            "average": self.average,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "sources": [self.bank_source.state(), self.tool_source.state()],
            "progress": (self.tokens, self.step_number, self.seconds),
            "torch_rng": torch.get_rng_state(),
        }
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.checkpoint)

    def save(self) -> None:
        """Writes the averaged weights as a checkpoint."""
        model = make_model(self.record["size"], seed=0)
        model.load_state_dict(self.average, strict=False)
        model.tie_weights()
        tuned: dict[str, Any] = {
            "minutes": round(self.seconds / 60, 1),
            "steps": self.step_number,
            "tokens": self.tokens,
        }
        write_weights(model, self.target, {**self.record, "tuned": tuned}, self.tokenizer_dir)


def main() -> None:
    """Tunes pilot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--base", type=Path, default=WEIGHTS_DIR / "pilot", help="what to begin with"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="what a stopped run goes on from"
    )
    parser.add_argument(
        "--start", type=Path, help="other weights to go on from; base is agreed with"
    )
    parser.add_argument("--kept", type=float, default=KEPT, help="weight of agreeing with base")
    parser.add_argument("--peak-lr", type=float, default=PEAK_LR, help="learning rate")
    parser.add_argument("--target", type=Path, default=TUNED_DIR, help="where weights go")
    parser.add_argument("--million-tokens", type=float, default=MILLION_TOKENS)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="at most; the schedule becomes shorter"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    tuner = Tuner(
        args.base,
        args.target,
        args.million_tokens,
        args.seed,
        args.minutes,
        args.checkpoint,
        start=args.start,
        kept=args.kept,
        peak_lr=args.peak_lr,
    )
    print(f"resumed at step {tuner.step_number}" if tuner.resume() else "from the beginning")
    tuner.run()


if __name__ == "__main__":
    main()
