"""Where a model's files are: embedded, in a local folder, or on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from twostroke.core.errors import ModelLoadError
from twostroke.core.files import is_file, is_folder
from twostroke.model_spec.config_fields import short
from twostroke.model_spec.gguf_choice import (
    GGUF,
    choose_gguf,
    download_patterns,
    holds_gguf_alone,
    split_format,
)
from twostroke.model_spec.json_files import read_object

EMBEDDED_MODELS = ("pilot", "pilot-draft")
EMBEDDED_HEADS = ("pilot-medusa",)  # no models, but what guesses ahead for one
# Never pickles, never a repository's Python code.
DOWNLOAD_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.tiktoken", "*.model"]
_IGNORED = ["original/*", "consolidated*", "onnx/*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_FILE = re.compile(r"[\w .+=@~-]{1,200}\.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def resolve_model(model: str, revision: str | None = None) -> Path:
    """The folder that holds a model's files, downloaded first if it is a Hub id, or its GGUF file.

    Args:
        model: ``pilot`` or another embedded one, a local folder or GGUF file, or a Hub id. An
            embedded name wins over a folder of that name; write ``./pilot`` for the folder. Of
            several GGUF files, the format behind a colon chooses: ``folder:Q4_K_M``.
        revision: Branch, tag or commit on the Hub. ``HF_HUB_OFFLINE=1`` uses only what was
            downloaded before.

    Raises:
        ModelLoadError: There is no such model, it cannot be downloaded, or it has no revisions.
    """
    path, is_embedded = _expand_home(model), model in (*EMBEDDED_MODELS, *EMBEDDED_HEADS)
    if revision is not None and (is_embedded or is_folder(path) or is_file(path)):
        hint = "leave --revision out, or give the model's id on the Hugging Face Hub"
        raise ModelLoadError(
            f"--revision {revision}: {model} is not on the Hub and has no revisions", hint=hint
        )
    if is_embedded:
        folder = Path(__file__).parents[1] / "pilot" / "weights" / model
        if not (folder / "config.json").is_file():
            raise ModelLoadError(
                f"this installation has no embedded model {model!r} (looked in {folder})",
                hint="install a released wheel, or give --model a folder or a Hugging Face Hub id",
            )
        return folder
    if is_folder(path):
        return choose_gguf(path, None) if holds_gguf_alone(path) else path
    if is_file(path):
        if path.suffix == GGUF:
            return path
        raise ModelLoadError(
            f"{model} is a file",
            hint="give a .gguf file, or the folder that holds config.json and the safetensors",
        )
    repository, format = split_format(model)
    if format is not None and is_folder(folder := _expand_home(repository)):
        return choose_gguf(folder, format)
    if not _HUB_ID.fullmatch(repository):
        raise ModelLoadError(
            f"no folder {model!r}, and it is no Hugging Face Hub id either",
            hint="give --model pilot, an existing folder, or an id such as Qwen/Qwen3-0.6B",
        )
    if format is None:
        return _download(repository, revision, DOWNLOAD_PATTERNS)
    return choose_gguf(_download(repository, revision, download_patterns(format)), format)


def _expand_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ModelLoadError(f"{path}: {error}", hint="write the folder without ~") from error


def _download(model: str, revision: str | None, patterns: list[str]) -> Path:
    # Imported here: 0.4 s that a local model does not need.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=patterns, ignore_patterns=_IGNORED
            )
        )
    except GatedRepoError as error:
        hint = f"accept the licence at https://huggingface.co/{model} and set HF_TOKEN"
        raise ModelLoadError(
            f"access to {model} on the Hugging Face Hub is restricted", hint=hint
        ) from error
    except LocalEntryNotFoundError as error:
        hint = "connect to the network and unset HF_HUB_OFFLINE, or give a local folder"
        message = f"{model} is neither a local folder nor downloaded, and the Hub is not reachable"
        raise ModelLoadError(message, hint=hint) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "check the name and --revision; for a private model set HF_TOKEN"
        raise ModelLoadError(
            f"cannot download {model} from the Hugging Face Hub: {message}", hint=hint
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in the order of their names.

    Raises:
        ModelLoadError: There are none, only pickles, or the index names one that is missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _indexed_files(index)
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    files = sorted(
        p
        for p in folder.glob("*.safetensors")
        if not p.name.startswith(("consolidated", "adapter"))
    )
    if files:
        return files
    pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if pickles:
        raise ModelLoadError(
            f"{folder} holds pickled weights only ({pickles[0]}); loading a pickle can run any"
            " code, so it is refused",
            hint=(
                "convert once, where you trust the file: transformers'"
                " AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder) writes"
                " safetensors"
            ),
        )
    raise ModelLoadError(
        f"{folder} has no *.safetensors", hint="download the checkpoint again, with its weights"
    )


def _is_file_name(name: object) -> bool:
    """Whether ``name`` is that of a file in the checkpoint's folder, and of none elsewhere."""
    return isinstance(name, str) and _FILE.fullmatch(name) is not None


def _indexed_files(index: Path) -> list[Path]:
    weight_map = read_object(index).get("weight_map")
    stated = list(weight_map.values()) if isinstance(weight_map, dict) else []
    wrong = [name for name in stated if not _is_file_name(name)]
    if not stated or wrong:
        raise ModelLoadError(
            f"cannot read {index}: its weight_map must name files, got"
            f" {short(wrong[0] if wrong else weight_map)}",
            hint="download the checkpoint again",
        )
    files = [index.parent / name for name in sorted(set(stated))]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ModelLoadError(
            f"{index.parent} lacks {len(missing)} of {len(files)} weight files:"
            f" {', '.join(missing[:3])}",
            hint="the download is incomplete; run it again",
        )
    return files
