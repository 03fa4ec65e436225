"""What drafts, with its weights and its KV tensors, as the configuration names it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.open_checkpoint import find_checkpoint, open_checkpoint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.speculation_config import Speculation
from twostroke.model_spec.model_files import resolve_model
from twostroke.models.decoder import Decoder
from twostroke.models.language_model import LanguageModel
from twostroke.models.multi_token_predictor import MultiTokenPredictor
from twostroke.models.support import read_runnable
from twostroke.runtime.backends import attention_backend
from twostroke.runtime.kv_tensors import KVTensors
from twostroke.runtime.speculation.medusa_weights import load_medusa_heads
from twostroke.runtime.speculation.predictor_weights import load_predictor
from twostroke.runtime.weights import load_model
from twostroke.spec_decode.base import Proposer
from twostroke.spec_decode.choose import quoting_proposer
from twostroke.spec_decode.draft_model import DraftModelProposer
from twostroke.spec_decode.early_exit import EarlyExitProposer
from twostroke.spec_decode.greedy import GreedyDrafter
from twostroke.spec_decode.medusa import MedusaHeads, MedusaProposer
from twostroke.spec_decode.mtp import MultiTokenProposer

# What has a KV cache beside the target's.
DraftModel = Decoder | MultiTokenPredictor
# Tokens that a refusal names as examples of how two vocabularies differ.
MAX_EXAMPLES = 3
_FILLER = re.compile(r"\[PAD\d+\]")


def load_draft(
    config: EngineConfig, checkpoint: Checkpoint, target: LanguageModel, max_model_len: int
) -> DraftModel | None:
    """The draft model, or the head for several tokens, if the configuration has one.

    Raises:
        ConfigError: It does not fit the target: another vocabulary, or too short a context; or the
            checkpoint has no such head.
        ModelLoadError: It is missing, broken or not supported.
    """
    speculation = config.speculation.resolve()
    if speculation is not None and speculation.method == "mtp":
        assert isinstance(target, Decoder)  # others are refused before they load
        return load_predictor(checkpoint, target, max_model_len, config.model.quantization)
    if speculation is None or speculation.method != "draft":
        return None
    name = speculation.model or _default_draft(config.model.model)
    draft = find_checkpoint(name)
    spec = read_runnable(draft)
    if spec.state_bytes():
        raise ConfigError(
            f"the draft model {name} has recurrent layers, whose state cannot go back to what was"
            " accepted",
            hint="use a draft model without, or --speculation ngram",
        )
    check_vocabularies(
        f"the draft model {name}",
        draft,
        spec.vocab_size,
        checkpoint,
        target.spec.vocab_size,
    )
    if spec.context_length < max_model_len:
        raise ConfigError(
            f"the draft model {name} has a context of {spec.context_length} tokens, the target"
            f" {max_model_len}",
            hint=f"give --max-model-len {spec.context_length} or less, or another draft model",
        )
    dtype = str(target.dtype).removeprefix("torch.")
    return load_model(
        draft,
        spec,
        dtype,
        target.device,
        max_model_len,
        config.model.quantization,
        kv_format=config.cache.kv_format,
    )


def load_heads(
    config: EngineConfig, checkpoint: Checkpoint, target: LanguageModel
) -> MedusaHeads | None:
    """The target's Medusa heads, warmed up, if the configuration has some.

    Raises:
        ConfigError: They do not fit the target: another hidden size or vocabulary.
        ModelLoadError: They are missing, broken or pickled.
    """
    speculation = config.speculation.resolve()
    if speculation is None or speculation.method != "medusa":
        return None
    name = speculation.model or _default_heads(config.model.model)
    heads_folder = resolve_model(name)
    size = target.spec.vocab_size
    heads = open_checkpoint(heads_folder)
    check_vocabularies(f"the Medusa heads {name}", heads, size, checkpoint, size)
    loaded = load_medusa_heads(name, heads_folder, target)
    state = torch.zeros(1, target.spec.hidden_size, dtype=target.dtype, device=target.device)
    with torch.inference_mode():
        loaded.warm_up(state)
    return loaded


def make_proposer(
    speculation: Speculation,
    target: LanguageModel,
    kv: KVTensors,
    draft: tuple[DraftModel, KVTensors] | None,
    heads: MedusaHeads | None,
) -> Proposer:
    """The proposer of a configuration.

    Args:
        draft: What drafts with a cache of its own, and its KV tensors, where there is such.
        heads: Medusa heads, where there are some.
    """
    if heads is not None:
        return MedusaProposer(heads)
    if draft is not None:
        model, own_kv = draft
        if isinstance(model, MultiTokenPredictor):
            backend = attention_backend(model.spec, own_kv)
            copy, zero = own_kv.copy_blocks, own_kv.zero_slots
            return MultiTokenProposer(model, backend, copy, zero, kv.block_size)
        drafter = _drafter(model, own_kv)
        return DraftModelProposer(drafter, own_kv.copy_blocks, kv.num_blocks, kv.block_size)
    if speculation.method == "early-exit":
        count = _exit_layer(speculation, target)
        assert isinstance(target, Decoder)  # others are refused before they load
        first_layers = target.first_layers(count)
        return EarlyExitProposer(_drafter(first_layers, kv, count))
    return quoting_proposer(speculation)


def check_vocabularies(
    what: str, draft: Checkpoint, draft_size: int, target: Checkpoint, target_size: int
) -> None:
    """Raise ``ConfigError``, with the difference, unless every token means the same to both.

    ``what`` drafts. Where one of them has no tokenizer, only the sizes are compared.
    """
    hint = "give one that was made with the target's tokenizer"
    if draft_size != target_size:
        raise ConfigError(
            f"{what} has a vocabulary of {draft_size} tokens, the target {target_size}",
            hint=hint,
        )
    texts = [checkpoint.path / "tokenizer.json" for checkpoint in (draft, target)]
    if all(path.is_file() for path in texts) and texts[0].read_bytes() == texts[1].read_bytes():
        return
    drafts, targets = map(_vocabulary, (draft, target))
    if drafts is None or targets is None:
        return
    differing = sorted(
        token for token in drafts.keys() | targets.keys() if drafts.get(token) != targets.get(token)
    )
    if differing:
        examples = "; ".join(
            f"{token} is {drafts.get(token)!r} there and {targets.get(token)!r} here"
            for token in differing[:MAX_EXAMPLES]
        )
        raise ConfigError(
            f"{what} gives {len(differing)} tokens another meaning: {examples}",
            hint=hint,
        )


def _drafter(model: Decoder, kv: KVTensors, num_layers: int | None = None) -> GreedyDrafter:
    backend = attention_backend(model.spec, kv, num_layers)
    return GreedyDrafter(model, backend, kv.block_size)


def _exit_layer(speculation: Speculation, target: LanguageModel) -> int:
    num_layers = target.spec.num_layers
    count = speculation.exit_layer or max(1, num_layers // 4)
    if count >= num_layers:
        raise ConfigError(
            f"--speculative-config: exit_layer is {count}, but the model has {num_layers} layers",
            hint=f"give exit_layer from 1 to {num_layers - 1}",
        )
    return count


def _default_draft(model: str) -> str:
    if model == "pilot":
        return "pilot-draft"
    raise ConfigError(
        f"no draft model is known for {model}",
        hint='name one: --speculative-config {"method": "draft", "model": "..."}',
    )


def _default_heads(model: str) -> str:
    if model == "pilot":
        return "pilot-medusa"
    raise ConfigError(
        f"no Medusa heads are known for {model}",
        hint='name their folder: --speculative-config {"method": "medusa", "model": "..."}',
    )


def _vocabulary(checkpoint: Checkpoint) -> dict[int, str] | None:
    """The tokens by id; ``None`` for a folder without a tokenizer.json, as of heads."""
    path = checkpoint.path / "tokenizer.json"
    if path.is_file():
        return _tokens(path)
    if checkpoint.path.is_dir():
        return None
    tokens = checkpoint.tokenizer().backend.get_vocab(with_added_tokens=True)
    # Files are filled up to the size of the matrices, folders are not.
    return {index: token for token, index in tokens.items() if not _FILLER.fullmatch(token)}


def _tokens(path: Path) -> dict[int, str]:
    """The tokens of a tokenizer.json by id, added ones included."""
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content.get("model", {}).get("vocab", {})
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else _scored(vocabulary)
    tokens = {token_id: token for token, token_id in pairs}
    return tokens | {added["id"]: added["content"] for added in content.get("added_tokens", [])}


def _scored(vocabulary: Sequence[Sequence[object]]) -> list[tuple[str, int]]:
    """Unigram models list their tokens with scores, in order of id."""
    return [(str(entry[0]), token_id) for token_id, entry in enumerate(vocabulary)]
