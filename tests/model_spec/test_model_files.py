"""Protects: a model's name leads to its files, or to one clear error."""

from __future__ import annotations

from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.model_files import resolve_model, weight_files


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["pilot", "folder"])
def test_a_revision_of_what_has_none_is_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who pins a revision must not be served something else."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="--revision v1") as failure:
        resolve_model(model, "v1")
    assert "Hub" in str(failure.value.hint)


def test_a_hub_id_is_downloaded_without_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, object]] = []

    def download(
        repo: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        calls.append((repo, revision))
        assert "*.safetensors" in allow_patterns and not any(
            p.endswith((".bin", ".py")) for p in allow_patterns
        )
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("someone/some-model", "v1") == tmp_path
    assert calls == [("someone/some-model", "v1")]


def test_an_unreachable_hub_is_a_model_load_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*args: object, **kwargs: object) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelLoadError, match="neither a local folder nor downloaded") as failure:
        resolve_model("someone/some-model")
    assert "HF_HUB_OFFLINE" in str(failure.value.hint)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c", "has space"])
def test_a_name_that_is_nothing_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match="no folder"):
        resolve_model(name)


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve_model(str(path))


def gguf_folder(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


MANY = ("a-Q4_K_M.gguf", "a-Q4_K_S.gguf", "a.q8_0.gguf", "mmproj-a-Q8_0.gguf")
PARTS = tuple(f"a-Q6_K-0000{index}-of-00002.gguf" for index in (1, 2))


@pytest.mark.parametrize(
    ("format", "name"),
    [("Q4_K_M", MANY[0]), ("q4_k_s", MANY[1]), ("Q8_0", MANY[2]), ("Q6_K", PARTS[0])],
)
def test_the_format_behind_a_colon_chooses_the_file(
    format: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gguf_folder(tmp_path / "models", *MANY, *PARTS)
    assert resolve_model(f"{folder}:{format}") == folder / name

    def download(repo: str, *, allow_patterns: list[str], **options: object) -> str:
        assert repo == "someone/a-GGUF" and not any("safetensors" in own for own in allow_patterns)
        matching = {own for own in (*MANY, *PARTS) for p in allow_patterns if fnmatch(own, p)}
        assert matching == set(PARTS) if format == "Q6_K" else name in matching
        return str(gguf_folder(tmp_path / "hub", *matching))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model(f"someone/a-GGUF:{format}") == tmp_path / "hub" / name


def test_a_folder_of_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    folder = gguf_folder(tmp_path, *PARTS, MANY[3])
    assert resolve_model(str(folder)) == folder / PARTS[0]
    gguf_folder(tmp_path, *MANY)
    with pytest.raises(ModelLoadError, match="holds several GGUF files") as failure:
        resolve_model(str(folder))
    assert "a-Q4_K_M.gguf" in str(failure.value.hint)
    with pytest.raises(ModelLoadError, match="holds no GGUF file in Q2_K"):
        resolve_model(f"{folder}:Q2_K")
    (folder / "config.json").touch()
    assert resolve_model(str(folder)) == folder


def test_weight_files(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="has no"):
        weight_files(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match="pickled weights only") as failure:
        weight_files(tmp_path)
    assert "save_pretrained" in str(failure.value.hint)
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"x": "b.safetensors", "y": "model.safetensors"}}')
    with pytest.raises(ModelLoadError, match=r"lacks 1 of 2 weight files: b\.safetensors"):
        weight_files(tmp_path)
    index.write_text("[]")
    with pytest.raises(ModelLoadError, match="cannot read"):
        weight_files(tmp_path)
