"""Reads safetensors checkpoints into a model's fused parameters.

Nothing is initialized that is then overwritten.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.distributed.rank_spec import rank_spec, rows_of_rank
from twostroke.distributed.ranks import Ranks
from twostroke.kernels.library import GROUP, load_library
from twostroke.layers.gpu.load import load_operators
from twostroke.layers.linear import Linear
from twostroke.layers.stored_blocks import KeptWeight, join_kept
from twostroke.layers.stored_weights import StoredWeight
from twostroke.model_spec.number_formats import NumberFormat, weight_format
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.parameters import Parameter
from twostroke.models.registry import decoder_family
from twostroke.models.shards import NO_SHARDS, Shard, added_once, shards_of
from twostroke.models.stored_names import Beside, names_as_stored
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.runtime.adapters.places import AdapterPlaces
from twostroke.runtime.checkpoints.tensor_files import DTYPES, TensorFiles
from twostroke.runtime.device import free_memory

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

logger = logging.getLogger(__name__)
# How the kernels keep rounded weights; int8 has one scale per output, too little to count.
_ROUNDED = {
    "int8": NumberFormat("int8", 8, "int8"),
    "int4": NumberFormat("int4", 4, "int8", scale_bits=32, group=GROUP),
    "fp8": NumberFormat("fp8", 8, "fp8"),
}
MXFP4 = weight_format("mxfp4")  # of experts alone, kept as it is stored
_TABLES = ("embed", "head", "layer_table")
PROGRESS_AFTER_SECONDS = 1.0
Advance = Callable[[int], None]  # called with each number of bytes that were loaded
SCORE_HEAD = "score.weight"  # of a decoder that ranks pairs of texts, see ``ScoreHead``


def load_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    dtype: str,
    device: torch.device,
    max_length: int,
    quantization: str | None = None,
    profiler: Profiler = NO_PROFILE,
    *,
    kv_format: str = "auto",
    scores_pairs: bool = False,
    places: AdapterPlaces | None = None,
    group: Ranks | None = None,
) -> Decoder:
    """Load a decoder.

    Args:
        checkpoint: Where its names lack the usual prefix, it may lack the head, too; then the
            model's own spec says ``tied``. Of an image model, the text part is loaded.
        spec: What its ``config.json`` says, see ``read_runnable``.
        dtype: ``auto`` keeps the checkpoint's precision, see ``decoder_dtype``.
        max_length: Longest request in tokens; sizes the rotary table.
        quantization: Rounds the weights of linear layers while they are read.
        kv_format: Format of the KV cache; ``auto`` is the model's precision.
        scores_pairs: It has a head for scores, which is read elsewhere, and maybe no language head.
        places: Where adapters may add to it; noted while it is built.
        group: The processes that share it; each reads its part.

    Raises:
        ModelLoadError: Tensors are missing, unexpected or of the wrong shape; a file is broken;
            pickles only.
        InsufficientMemoryError: The weights exceed the free memory; raised before anything is
            loaded.
    """
    files = TensorFiles(checkpoint.tensors())
    family, spec, expected = match_checkpoint(files, spec, scores_pairs=scores_pairs)
    torch_dtype = decoder_dtype(spec, expected, files, dtype, device, quantization)
    if quantization is not None:
        check_quantization(quantization, torch_dtype, device, load_operators(device))
    shards = NO_SHARDS
    once = set[str]()
    if group is not None:
        whole, spec = expected, rank_spec(spec, group.size)
        rows = rows_of_rank(spec.vocab_size, group.size)
        expected = family.parameters(replace(spec, vocab_size=rows))
        shards = shards_of(whole, expected, group.rank, group.size)
        once = added_once(whole, shards) if group.rank else once
    kept = kept_as_stored(expected, files, torch_dtype, device, quantization, shards)
    weights = loaded_bytes(spec, torch_dtype.itemsize, quantization)
    if quantization is None:
        weights -= spared_bytes(kept, files, torch_dtype)
    check_memory(weights, device)
    cache_dtype = str(torch_dtype).removeprefix("torch.") if kv_format == "auto" else kv_format
    check_context_fits(max_length, spec, cache_dtype, weights, device)
    files.say_what_is_decoded(torch_dtype, kept)
    with _progress_bar(loaded_bytes(spec, torch_dtype.itemsize)) as progress:
        parameters = StoredParameters(
            expected, files, torch_dtype, device, progress, kept, places, shards, once
        )
        return Decoder(spec, family, parameters, max_length, quantization, profiler, group)


def kept_as_stored(
    expected: list[Parameter],
    files: TensorFiles,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
    shards: Mapping[str, Shard] = NO_SHARDS,
) -> list[Parameter]:
    """What stays as it is stored: where kernels run, and nothing rounds it.

    On a GPU, matrices of integers of one format.
    """
    if runs_compiled(dtype, device):
        return [each for each in expected if files.is_kept(each, quantization, shards)]
    if load_operators(device) is None:
        return []
    return [
        each
        for each in expected
        if files.are_integers(each)
        and each.name.endswith(".weight")
        and files.is_kept(each, quantization, shards)
    ]


def runs_compiled(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the compiled CPU kernels run a model."""
    return device.type == "cpu" and dtype == torch.bfloat16 and load_library() is not None


def decoder_dtype(
    spec: ModelSpec,
    expected: list[Parameter],
    files: TensorFiles,
    wanted: str,
    device: torch.device,
    quantization: str | None = None,
) -> torch.dtype:
    """The precision of ``--dtype`` for a decoder.

    ``auto`` is the checkpoint's, but bfloat16 for one of float16 whose layers kernels mostly take
    as they are stored then. Quantised folders state float16 more often than not. What is kept is
    exact in either; the rest, such as embeddings and norms, is rounded.
    """
    dtype = choose_dtype(spec.dtype or files.stored_dtype(expected), wanted)
    if wanted != "auto" or dtype != torch.float16 or device.type != "cpu":
        return dtype
    kept = kept_as_stored(expected, files, torch.bfloat16, device, quantization)
    if 2 * _num_in_layers(kept) <= _num_in_layers(expected):
        return dtype
    logger.info("bfloat16 instead of float16: its weights are multiplied as they are stored")
    return torch.bfloat16


def _num_in_layers(parameters: Sequence[Parameter]) -> int:
    """Elements, without the tables that have a row for each token."""
    return sum(math.prod(each.shape) for each in parameters if each.name not in _TABLES)


def spared_bytes(kept: Sequence[Parameter], files: TensorFiles, dtype: torch.dtype) -> int:
    """What parameters that are ``kept_as_stored`` take less than in ``dtype``."""
    return sum(math.prod(own.shape) * dtype.itemsize - files.kept_bytes(own) for own in kept)


def match_checkpoint(
    files: TensorFiles, spec: ModelSpec, *, scores_pairs: bool
) -> tuple[DecoderFamily, ModelSpec, list[Parameter]]:
    """The names that a checkpoint uses, its own spec, and its parameters; ``load_model`` explains.

    Raises:
        ModelLoadError: Tensors are missing, unexpected, of the wrong shape or type.
    """
    family = decoder_family(spec.model_type)
    family, is_bare = names_as_stored(family, spec, files)
    if is_bare or scores_pairs:
        # Without a head, as embedding models are stored, the embedding stands in for it.
        spec = replace(spec, tied=spec.tied or family.head not in files)
    expected = family.parameters(spec)
    needless = {family.head, SCORE_HEAD} if scores_pairs else {family.head}
    beside = Beside(family, spec)
    files.check(
        expected,
        lambda name: name in needless or name.endswith("inv_freq") or beside(name),
    )
    return family, spec, expected


def choose_dtype(stored: str, wanted: str) -> torch.dtype:
    """The precision of ``--dtype``; ``auto`` is that of the checkpoint."""
    return DTYPES[stored if wanted == "auto" else wanted]


def loaded_bytes(spec: ModelSpec, itemsize: int, quantization: str | None = None) -> int:
    """Bytes of a model in memory, each parameter of ``itemsize`` or in a linear layer rounded.

    With tied embeddings the rounded head is a copy.
    """
    if quantization is None:
        in_few_bits = _expert_weights(spec) if spec.quantization == MXFP4.name else 0
        whole = spec.num_parameters - in_few_bits
        return whole * itemsize + int(in_few_bits * MXFP4.bits) // 8
    table = spec.vocab_size * spec.hidden_size
    rounded = spec.num_parameters - table - spec.layer_table + (table if spec.tied else 0)
    table += spec.layer_table
    return table * itemsize + int(rounded * _ROUNDED[quantization].bits) // 8


def _expert_weights(spec: ModelSpec) -> int:
    """Elements of the matrices of all experts."""
    return sum(
        layer.count * layer.experts.count * linear.inputs * linear.outputs
        for layer in spec.layers
        if layer.experts
        for linear in layer.experts.linears
    )


class StoredParameters:
    """The model's parameters, each read when it is taken.

    So a layer that keeps another form needs no room for both.

    Args:
        shards: What is wanted of stored tensors, where that is not all.
        zero: Parameters that are zero here, whatever is stored.
    """

    def __init__(
        self,
        expected: list[Parameter],
        files: TensorFiles,
        dtype: torch.dtype,
        device: torch.device,
        progress: Advance | None = None,
        kept: Sequence[Parameter] = (),
        places: AdapterPlaces | None = None,
        shards: Mapping[str, Shard] = NO_SHARDS,
        zero: Container[str] = (),
    ) -> None:
        self._places = places
        self._shards, self._zero = shards, zero
        if places is not None:
            places.expect(expected)
        self._kept = {parameter.name for parameter in kept}
        self._expected = {parameter.name: parameter for parameter in expected}
        self._files, self._dtype, self._device, self._progress = files, dtype, device, progress

    def __contains__(self, name: str) -> bool:
        return name in self._expected

    def adaptable(self, name: str, linear: Linear, order: Tensor | None) -> Linear:
        return linear if self._places is None else self._places.adaptable(name, linear, order)

    def pop_kept(self, name: str, *, whole: bool) -> list[KeptWeight]:
        if name not in self._kept:
            return []
        library = load_library() if runs_compiled(self._dtype, self._device) else None
        own = self._expected[name].parts
        parts = [self._files.kept(part, library, self._shards.get(part)) for part, _ in own]
        if whole and len({part.format for part in parts}) > 1:
            return []
        parameter = self._expected.pop(name)
        if self._progress is not None:
            self._progress(math.prod(parameter.shape) * self._dtype.itemsize)
        joined = [join_kept([*own]) for _, own in groupby(parts, lambda part: part.format)]
        return [own.to(self._device) if isinstance(own, StoredWeight) else own for own in joined]

    def pop(self, name: str) -> Tensor:
        parameter = self._expected.pop(name)
        dtype = torch.uint8 if parameter.is_bytes else self._dtype
        target = torch.empty(parameter.shape, dtype=dtype, device=self._device)
        row = 0
        for part, shape in parameter.parts:
            self._files.copy(part, target[row : row + shape[0]], self._shards.get(part))
            row += shape[0]
        if name in self._zero:
            target.zero_()
        if self._progress is not None:
            self._progress(target.nbytes)
        return target


def check_quantization(
    quantization: str, dtype: torch.dtype, device: torch.device, operators: GpuOperators | None
) -> None:
    """Refuse what neither a CPU's kernels nor a GPU's ``operators`` can round to.

    Raises:
        ConfigError: Say what can.
    """
    if quantization == "fp8" and (operators is None or not operators.has_fp8):
        raise ConfigError(
            "--quantization fp8 works on NVIDIA GPUs of compute capability 8.9 (Ada, Hopper) on"
            f" with Triton; this is {device}",
            hint="give --quantization int8 or int4, or leave it out",
        )
    if operators is not None:
        return
    if device.type != "cpu" or dtype != torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        raise ConfigError(
            "--quantization works in bfloat16 on a CPU, and on NVIDIA GPUs from Ampere on with"
            f" Triton; this is {name} on {device}",
            hint="give --dtype bfloat16 --device cpu, or leave --quantization out",
        )
    if load_library() is None:
        raise ConfigError(
            "--quantization needs the compiled kernels, which are not there",
            hint="install a C++ compiler (g++ or clang++) and install twostroke again",
        )


def check_memory(needed: int, device: torch.device) -> None:
    free = free_memory(device)
    if needed > free:
        raise InsufficientMemoryError(
            f"the weights need {format_bytes(needed)}, but {device} has {format_bytes(free)} free",
            hint="use a smaller model or a smaller --dtype, or free some memory",
        )


def check_context_fits(
    length: int, spec: ModelSpec, cache_dtype: str, weights: int, device: torch.device
) -> None:
    """Refuse a context of which not one request fits beside the weights, before it is allocated."""
    # Rotary angles are made in float32, and four tables of them are there at once.
    rotary = 4 * 4 * spec.head_dim // 2
    needed = int(spec.kv_bytes(length, cache_dtype)) + rotary * length
    room = max(free_memory(device) - weights, 0)
    if needed > room:
        raise InsufficientMemoryError(
            f"one request of {length} tokens, the model's context, needs"
            f" {format_bytes(needed)}, but {device} has {format_bytes(room)} free",
            hint=f"give --max-model-len, {max(room * length // needed // 2, 1)} or less",
        )


@contextmanager
def _progress_bar(total: int) -> Iterator[Advance]:
    """A bar on stderr if that is a terminal, shown once loading has taken a second."""
    with ExitStack() as stack:
        start, done = time.perf_counter(), 0
        advance: Advance | None = None

        def progress(count: int) -> None:
            nonlocal done, advance
            done += count
            if (
                advance is None
                and sys.stderr.isatty()
                and time.perf_counter() - start > PROGRESS_AFTER_SECONDS
            ):
                advance = _start_bar(stack, total)
                advance(done)
            elif advance is not None:
                advance(count)

        yield progress


def _start_bar(stack: ExitStack, total: int) -> Advance:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("weights", total=total)
    return lambda count: bar.advance(task, count)
