"""Loads a checkpoint as a decoder of transformers. Imported only when one is asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from twostroke.core.errors import ModelLoadError, panic_text
from twostroke.model_spec.config_fields import short
from twostroke.model_spec.generation_config import read_generation
from twostroke.models.foreign.decoder import ForeignBody, ForeignDecoder
from twostroke.models.foreign.interface import NAME, NO_INTERFACE, REFUSED, register
from twostroke.models.foreign.outline import outline
from twostroke.observability.profile import NO_PROFILE, Profiler

logger = logging.getLogger(__name__)
_BROKEN = "config.json belongs to another model, or the checkpoint is incomplete"


def read_foreign_config(folder: Path, raw: Mapping[str, Any]) -> Any:
    """The configuration as transformers reads it.

    Raises:
        ModelLoadError: It knows no such decoder, or one that cannot run over the paged cache.
    """
    import transformers

    if raw.get("quantization_config"):
        raise ModelLoadError(
            "config.json: quantization_config: the checkpoint is quantized, which is not supported",
            hint="use the bfloat16, float16 or float32 version of this model",
        )
    model_type = raw.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        raise ModelLoadError(
            f"unknown architecture: model_type is {short(model_type)}, which neither twostroke nor"
            f" transformers {transformers.__version__} has",
            hint="code from a checkpoint's folder is never run",
        )
    with _one_line(folder):
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    if config.is_encoder_decoder:
        raise ModelLoadError(
            f"{model_type} is an encoder with a decoder (is_encoder_decoder), which is not"
            " supported",
            hint="serve a decoder-only model",
        )
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelLoadError(
            f"{model_type} is no language model of transformers", hint="serve a decoder"
        )
    return config


def load_foreign(
    folder: Path,
    raw: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    profiler: Profiler = NO_PROFILE,
) -> ForeignDecoder:
    """Load a checkpoint folder with safetensors; nothing from pickle, no code from the folder.

    Args:
        raw: The contents of ``config.json``.

    Raises:
        ModelLoadError: transformers cannot load it, tensors are missing or of the wrong shape, or
            it cannot run over the paged cache.
    """
    import transformers

    config = read_foreign_config(folder, raw)
    register()
    with _one_line(folder):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the report has them, and they are refused below
            output_loading_info=True,
        )
    _check_report(report)
    with _one_line(folder):
        body = ForeignBody(model.eval().requires_grad_(False).to(device))
        spec = outline(body, raw, read_generation(folder), dtype)
    logger.warning(
        "%s runs by transformers' code, slower than the families of twostroke", spec.model_type
    )
    return ForeignDecoder(body, spec, device, dtype, profiler)


def _check_report(report: Mapping[str, Any]) -> None:
    for key, what in (
        ("missing_keys", "the checkpoint lacks"),
        ("mismatched_keys", "the checkpoint has another shape of"),
        ("unexpected_keys", "the checkpoint holds tensors that the model does not have:"),
    ):
        names = sorted(each if isinstance(each, str) else str(each[0]) for each in report[key])
        names = [name for name in names if not name.endswith("inv_freq")]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelLoadError(f"{what} {', '.join(names[:3])}{more}", hint=_BROKEN)


@contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """Whatever another project's code raises over a checkpoint is an error of the checkpoint."""
    from transformers.utils import logging as their_logging

    verbosity = their_logging.get_verbosity()
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (NAME,):  # it has a table of its own
            raise ModelLoadError(NO_INTERFACE, hint=REFUSED) from error
        text = " ".join(panic_text(error).split()) or type(error).__name__
        raise ModelLoadError(
            f"transformers cannot run {folder}: {text[:300]}", hint=_BROKEN
        ) from error
    finally:
        their_logging.set_verbosity(verbosity)
