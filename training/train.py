"""Trains pilot or its draft on a number of tokens. Run as `python -m training.train --size pilot`.

The schedule follows the tokens seen (kept in the checkpoint), so a run gives the same on a quiet
machine and on a busy one; a stopped run goes on from its last checkpoint with the same batches.
Checkpoints go to training/runs/<size>/, weights for use are made by `training.export`.
"""

import argparse
import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from training.augment import Rephraser
from training.bank import Bank, load_bank
from training.copying import learn_copying
from training.data import BatchSource, Encoder
from training.model import SIZES, Chooser, give_meanings, greedy, make_model, text_loss
from training.prepare import BANK_COPY, RUNS_DIR, TOKENIZER_DIR
from training.suites import begun_answer, quick_cases, render
from training.teacher import Teacher
from training.tokenizer import IM_END, load_tokenizer

PEAK_LR = {"pilot": 1.5e-3, "draft": 3e-3}
MILLION_TOKENS = {"pilot": 26.5, "draft": 5.0}
WARM_UP, FINAL_LR = 0.014, 0.02  # As fractions of the tokens, of a fall's beginning.
# From and to which fraction, from what of the peak.
FALLS = ((0.278, 0.564, 1.0), (0.564, 0.738, 0.5), (0.738, 0.868, 0.35), (0.868, 1.0, 0.35))
TEACHER_STEPS = 1000
COPYING_STEPS = 300  # At most, before any text.
EMA_DECAY = 0.995
CHECKPOINT_SECONDS, EVALUATE_SECONDS, LOG_SECONDS = 180.0, 240.0, 10.0
QUICK_PHRASINGS, QUICK_PER_SUITE, QUICK_TOKENS = 60, 10, 24


@dataclass
class Progress:
    """What a checkpoint keeps beside the tensors."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float = math.nan
    history: list[dict[str, float]] = field(default_factory=list)

    def fraction(self, total: float) -> float:
        """How far the schedule of `total` tokens has come, in [0, 1]."""
        return min(1.0, self.tokens / total)


def learning_rate(fraction: float, peak: float) -> float:
    """Warm-up, constant, then linear falls to nearly nothing, each from less than the one before.

    Warm restarts (Loshchilov and Hutter 2017): what a fall settled is kept, the rest is stirred
    once more.
    """
    if fraction < WARM_UP:
        return peak * (0.02 + 0.98 * fraction / WARM_UP)
    if fraction < FALLS[0][0]:
        return peak
    begin, end, top = next(fall for fall in reversed(FALLS) if fraction >= fall[0])
    return peak * top * (FINAL_LR + (1 - FINAL_LR) * max(0.0, end - fraction) / (end - begin))


def falls_ended(fraction: float) -> int:
    """How many falls of the learning rate are over."""
    return sum(fraction >= end for _, end, _ in FALLS)


def make_optimizers(model: LlamaForCausalLM, kind: str, peak: float) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon for the layers' matrices; norms and the embedding do not decay."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in n]
    other_parameters = [
        p for n, p in model.named_parameters() if p.ndim != 2 or "embed_tokens" in n
    ]
    groups = [{"params": other_parameters, "weight_decay": 0.0}]
    if kind == "adamw":
        groups.append({"params": matrices, "weight_decay": 0.1})
    adamw = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if kind == "adamw":
        return [adamw]
    # With the step's size matched to AdamW's, both take the same learning rate.
    return [
        adamw,
        torch.optim.Muon(matrices, lr=peak, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]


class Trainer:
    """One run: model, optimiser, averaged weights, batches, and where all that is kept."""

    def __init__(
        self,
        size: str,
        bank: Bank,
        run_dir: Path,
        million_tokens: float,
        seed: int,
        token_budget: int,
        peak: float,
        optimizer: str,
    ) -> None:
        self.size, self.bank, self.total, self.peak = size, bank, million_tokens * 1e6, peak
        self.path = run_dir / "checkpoint.pt"
        run_dir.mkdir(parents=True, exist_ok=True)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tokenizer = load_tokenizer(TOKENIZER_DIR)
        self.model = make_model(size, seed).to(self.device)
        self.average = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.settled: list[
            dict[str, Tensor]
        ] = []  # The average at the end of each fall of the learning rate.
        self.teacher = Teacher(bank, seed)
        self.chooser = Chooser(self.model.config.hidden_size, len(bank.items)).to(self.device)
        self.optimizers = make_optimizers(self.model, optimizer, peak)
        self.optimizers.append(
            torch.optim.AdamW(self.chooser.parameters(), lr=peak, weight_decay=0.1, fused=True)
        )
        self.source = BatchSource(bank, tokenizer, seed, token_budget, self.teacher)
        self.encoder = Encoder(tokenizer)
        self.progress = Progress()

    def step(self) -> tuple[float, int]:
        """One optimiser step: the answers' loss in nats per token, and the padded tokens."""
        fraction = self.progress.fraction(self.total)
        for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
            group["lr"] = learning_rate(fraction, self.peak)
        batch = self.source.next(fraction).to(self.device)
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16):
            text, hidden = text_loss(self.model, batch)
            loss = text
            if batch.questions:
                # No inference tensor.
                wanted = self.teacher.shares(batch.questions).clone().to(self.device)
                loss = loss + self.chooser(self.model, batch, hidden, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        decay = min(EMA_DECAY, self.progress.step / (self.progress.step + 10))
        parameters: list[Tensor] = [p.detach() for p in self.model.parameters()]
        torch._foreach_lerp_(list(self.average.values()), parameters, 1 - decay)
        return text.item(), batch.ids.numel()

    def save(self) -> None:
        """Writes the checkpoint aside and renames it: a stop never leaves half of one."""
        state = {
            "size": self.size,
            "bank_digest": self.bank.digest,
            "model": self.model.state_dict(),
            "average": self.average,
            "settled": self.settled,
            "teacher": self.teacher.state_dict(),
            "chooser": self.chooser.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "source": self.source.state(),
            "progress": vars(self.progress),
            "million_tokens": self.total / 1e6,
            "torch_rng": torch.get_rng_state(),
        }
        temporary = self.path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.path)

    def resume(self) -> bool:
        """Goes on from the checkpoint if there is one for this bank."""
        if not self.path.exists():
            return False
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["bank_digest"] != self.bank.digest:
            raise SystemExit(
                f"error: {self.path} was trained on another bank\n\nhint: move it away, then train"
                " again"
            )
        if (state["size"], state["million_tokens"]) != (self.size, self.total / 1e6):
            raise SystemExit(
                f"error: {self.path} has another size or schedule\n\nhint: move it away, then train"
                " again"
            )
        self.model.load_state_dict(state["model"])
        self.teacher.load_state_dict(state["teacher"])
        self.chooser.load_state_dict(state["chooser"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.average = {n: t.to(self.device) for n, t in state["average"].items()}
        self.settled = state["settled"]
        self.source.restore(state["source"])
        self.progress = Progress(**state["progress"])
        torch.set_rng_state(state["torch_rng"])
        return True

    def begin(self, seed: int) -> None:
        """Starts from scratch: the teacher learns the bank, the model gets words and copying."""
        begun = time.perf_counter()
        self.teacher.learn(Rephraser(self.bank), TEACHER_STEPS, seed)
        print(f"teacher: right about {self.teacher.right():.1%} of held-out phrasings", flush=True)
        words = [self.encoder.decode([token]) for token in range(self.model.config.vocab_size)]
        give_meanings(self.model, self.chooser, self.teacher, words)
        right = learn_copying(self.model, COPYING_STEPS, seed)
        print(f"copying learned: {right:.0%} of repeated random tokens", flush=True)
        self.average = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.progress.seconds = time.perf_counter() - begun

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Swaps the averaged weights in for the time of the block."""
        live = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        try:
            for name, parameter in self.model.named_parameters():
                parameter.data.copy_(self.average[name])
            yield
        finally:
            for name, parameter in self.model.named_parameters():
                parameter.data.copy_(live[name])

    def quick_evaluation(self) -> dict[str, float]:
        """By suite, the share of some held-out cases whose answer begins as the reference does."""
        cases = quick_cases(self.bank, QUICK_PHRASINGS, QUICK_PER_SUITE)
        with self.averaged():
            answers = greedy(
                self.model, [self.encoder.encode(render(case)) for case in cases], QUICK_TOKENS
            )
        hits: dict[str, list[bool]] = {}
        for case, answer in zip(cases, answers, strict=True):
            wanted = self.encoder.encode(
                begun_answer(case) + (IM_END if case.rule != "end" else "")
            )[:QUICK_TOKENS]
            group, _, kind = case.suite.partition(", ")
            suite = (
                group.removesuffix(" phrasings") if group.endswith(" phrasings") else kind or group
            )
            hits.setdefault(suite, []).append(answer[: len(wanted)] == wanted)
        return {suite: sum(suite_hits) / len(suite_hits) for suite, suite_hits in hits.items()}

    def run(self) -> None:
        """Trains until the tokens are seen; logs, evaluates and saves, which is not timed."""
        state = self.progress
        logged = saved = evaluated = state.seconds
        losses: list[float] = []
        tokens_before = state.tokens
        while state.tokens < self.total:
            begun = time.perf_counter()
            loss, tokens = self.step()
            state.seconds += time.perf_counter() - begun
            state.step += 1
            state.tokens += tokens
            while falls_ended(state.fraction(self.total)) > len(self.settled):
                self.settled.append({n: t.clone() for n, t in self.average.items()})
            losses.append(loss)
            if not math.isfinite(loss):
                raise SystemExit(
                    "error: the loss is not finite\n\nhint: lower --lr and train again from the"
                    " start"
                )
            if state.seconds - logged >= LOG_SECONDS or state.tokens >= self.total:
                speed = (state.tokens - tokens_before) / max(1e-9, state.seconds - logged)
                state.loss = sum(losses) / len(losses)
                left = (self.total - state.tokens) / max(1.0, speed) / 60
                rate = self.optimizers[0].param_groups[0]["lr"]
                print(
                    f"step {state.step:6d}  {state.seconds / 60:5.1f} min  loss {state.loss:.4f} "
                    f" lr {rate:.2e}  {speed:6.0f} tok/s  eta {left:5.1f} min",
                    flush=True,
                )
                losses, logged, tokens_before = [], state.seconds, state.tokens
            if state.seconds - evaluated >= EVALUATE_SECONDS or state.tokens >= self.total:
                scores = self.quick_evaluation()
                state.history.append(
                    {
                        "minutes": state.seconds / 60,
                        "loss": state.loss,
                        "held_out": scores["held-out"],
                    }
                )
                print(
                    "       right: " + ", ".join(f"{k} {v:.0%}" for k, v in scores.items()),
                    flush=True,
                )
                evaluated = state.seconds
            if state.seconds - saved >= CHECKPOINT_SECONDS or state.tokens >= self.total:
                self.save()
                saved = state.seconds


def main() -> None:
    """Trains, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="pilot")
    parser.add_argument(
        "--million-tokens", type=float, default=None, help="padded tokens in all, in millions"
    )
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--lr", type=float, default=None, help="peak learning rate")
    parser.add_argument("--tokens", type=int, default=3072, help="padded tokens per batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bank", type=Path, default=BANK_COPY)
    parser.add_argument(
        "--run",
        type=Path,
        default=None,
        help="directory of the checkpoint, by default training/runs/<size>",
    )
    args = parser.parse_args()
    run_dir = args.run or RUNS_DIR / args.size
    peak = args.lr or PEAK_LR[args.size]
    million = args.million_tokens or MILLION_TOKENS[args.size]
    trainer = Trainer(
        args.size,
        load_bank(args.bank),
        run_dir,
        million,
        args.seed,
        args.tokens,
        peak,
        args.optimizer,
    )
    resumed = trainer.resume()
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(
        f"{args.size}: {parameters / 1e6:.2f} M parameters on {trainer.device}, {million:g} M"
        f" tokens, {torch.get_num_threads()} threads,"
        f" {'resumed at step ' + str(trainer.progress.step) if resumed else 'from scratch'}",
        flush=True,
    )
    if not resumed:
        trainer.begin(args.seed)
    trainer.run()


if __name__ == "__main__":
    main()
