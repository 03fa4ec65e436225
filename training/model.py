"""The two sizes of pilot as transformers' Llama, and their forward passes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from training.attention import register
from training.data import Batch
from training.teacher import Teacher
from training.tokenizer import MODEL_MAX_LENGTH, VOCAB_SIZE

ROPE_THETA = 100_000.0
PAD_ID, EOS_ID = 0, 2
ROW_STEP = 128
LONGEST_BAG, BAG_WEIGHT, BAG_SCALE = 96, 0.5, 16.0  # Tokens; share of the loss; as in the teacher.
EMBEDDING_STD = 0.1  # Large enough that what it begins with outlasts the first steps.
SIZES = {
    "pilot": {
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 768,
    },
    "draft": {
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 384,
    },
}


def make_config(size: str) -> LlamaConfig:
    """The architecture of 'pilot' (7.3 M parameters) or 'draft' (1.1 M)."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=MODEL_MAX_LENGTH,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        attn_implementation=register(),
        **SIZES[size],
    )


def make_model(size: str, seed: int) -> LlamaForCausalLM:
    """A new model in float32; writers of the residual stream start smaller, by depth."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(make_config(size))
    scale = (2 * model.config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(EMBEDDING_STD / model.config.initializer_range)
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(scale)
    return model


def hidden_states(model: LlamaForCausalLM, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden states after half of the layers and the last ones, [rows, length, hidden] each.

    `ids` and `positions` are [rows, length].

    The layers are called directly: LlamaModel.forward takes a jump in the positions for the start
    of another packed sequence, and masks it.
    """
    trunk = model.model
    hidden: Tensor = trunk.embed_tokens(ids)
    rotary = trunk.rotary_emb(hidden, positions)
    middle = hidden
    for number, layer in enumerate(trunk.layers, start=1):
        hidden = layer(
            hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary
        )
        if number == (len(trunk.layers) + 1) // 2:
            middle = hidden
    return middle, trunk.norm(hidden)


def _few_shapes(linear: nn.Module, rows: Tensor) -> Tensor:
    """A linear map of [rows, hidden] in float32, on a multiple of ROW_STEP rows."""
    padded: Tensor = linear(F.pad(rows, (0, 0, 0, -len(rows) % ROW_STEP)))
    return padded[: len(rows)].float()


def text_loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the answers (nats per token, 0 without any), and the states.

    The states are those after half of the layers, [rows, length, hidden].

    Logits are computed only where there is loss: at 4096 words they cost as much as a layer.
    """
    chosen = batch.has_loss[:, 1:]  # [rows, length - 1]: which tokens are to be predicted
    middle, hidden = hidden_states(model, batch.ids, batch.positions)
    logits = _few_shapes(model.lm_head, hidden[:, :-1][chosen])  # [predicted, vocabulary]
    total = F.cross_entropy(logits, batch.ids[:, 1:][chosen], reduction="sum")
    return total / chosen.sum().clamp(min=1), middle


class Chooser(nn.Module):
    """Two linear maps to the bank's items, whose learning makes a model's answers right.

    One reads the state where an answer begins, after half of the layers: the other half, at this
    and all later places, can then read there what to say. The other reads half of the prompt's
    embeddings as a bag (copying needs the other half as it is), which would learn what rare words
    are worth much later without it.
    """

    def __init__(self, hidden: int, items: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.state, self.words = nn.Linear(hidden, items), nn.Linear(hidden - hidden // 2, items)

    def forward(
        self, model: LlamaForCausalLM, batch: Batch, hidden: Tensor, wanted: Tensor
    ) -> Tensor:
        """Cross-entropy in nats with `wanted` [questions, items]; hidden [rows, length, hidden]."""
        loss = F.cross_entropy(
            _few_shapes(self.state, self.norm(hidden[batch.rows, batch.asked].float())), wanted
        )
        if batch.ids.shape[1] > LONGEST_BAG:
            return loss
        inside = torch.arange(batch.ids.shape[1], device=hidden.device) <= batch.asked[:, None]
        embedded = model.model.embed_tokens(batch.ids[batch.rows])  # [questions, length, hidden]
        embedded = embedded[..., embedded.shape[-1] // 2 :] * inside[..., None]
        bag = embedded.sum(1) / inside.sum(1, keepdim=True).sqrt()
        return loss + BAG_WEIGHT * F.cross_entropy(_few_shapes(self.words, BAG_SCALE * bag), wanted)


@torch.no_grad()
def give_meanings(
    model: LlamaForCausalLM, chooser: Chooser, teacher: Teacher, words: Sequence[str]
) -> None:
    """Sets half of the embedding, and the bag's map, to the teacher's knowledge of `words`.

    Added up over a question, that alone chooses an item. A model narrower
    than the teacher gets the principal axes.
    """
    embedding = model.model.embed_tokens.weight
    half = embedding.shape[1] // 2
    vectors, out = teacher.vectors(words).clone(), teacher.out.weight.detach()
    if (room := embedding.shape[1] - half) < vectors.shape[1]:
        axes = torch.linalg.svd(vectors, full_matrices=False).Vh[:room].T
        vectors, out = vectors @ axes, out @ axes
    has_words = vectors.abs().sum(1) > 0
    vectors *= EMBEDDING_STD / vectors[has_words].std()
    embedding[has_words, half:] = vectors[has_words].to(embedding.device)
    chooser.words.weight.copy_(out)
    chooser.words.bias.copy_(teacher.out.bias)


@torch.inference_mode()
def greedy(
    model: LlamaForCausalLM,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    token_budget: int = 16384,
) -> list[list[int]]:
    """Greedy continuations without padding; one that ended by itself has EOS_ID last.

    Prompts are batched by length (left-padded) under a token budget. A plain loop over
    transformers' cache, no sampling.
    """
    model.eval()
    device = model.device
    results: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        rows = [order.pop()]
        width = len(prompts[rows[0]])
        while (
            order and len(rows) < 64 and (len(rows) + 1) * (width + max_new_tokens) <= token_budget
        ):
            rows.append(order.pop())
        ids = torch.full((len(rows), width), PAD_ID, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(rows):
            prompt = prompts[index]
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        out = model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=EOS_ID,
            pad_token_id=PAD_ID,
        )
        for index, tokens in zip(rows, out[:, width:].tolist(), strict=True):
            end = tokens.index(EOS_ID) + 1 if EOS_ID in tokens else len(tokens)
            results[index] = tokens[:end]
    return [results[i] for i in range(len(prompts))]
