"""What a fetched model is: written beside its weights, required when it is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from speclayers.config import Section
from speclayers.errors import UserError
from speclayers.files import read_json, write_json

MANIFEST = "manifest.json"

PLAIN_FORMAT = "User: {turn}\nAssistant:"
"""How a turn is asked of a model without chat template; part of such a model's template hash."""


class Manifest(Section):
    """Identity and sizes of a model folder.

    Args:
        name: Name in the registry.
        source: Where it came from, as in the config.
        revision: Commit of the hub's repository, or version of the package; None when there is none.
        files: SHA-256 of every file, by name.
        architecture: Class of the model.
        layers: Number of decoder blocks, N.
        width: Width of the residual stream.
        vocabulary: Rows of the embedding, at least the tokenizer's number of tokens.
        parameters: Number of weights; tied ones count once.
        dtype: Precision in which the weights are stored.
        context: Largest number of positions.
        tied: Whether embedding and LM head share their weights.
        tokenizer_hash: SHA-256 of the tokenizer.
        template_hash: SHA-256 of the chat template, or of the plain format that stands in for it.
        has_chat_template: Whether the tokenizer brings a chat template.
        pad_token_id: Token that fills batches; the end token when the tokenizer names none.
        stop_ids: Tokens that end an answer.
        licence: Licence of the weights, where known.
    """

    name: str
    source: dict[str, Any]
    revision: str | None
    files: dict[str, str]
    architecture: str
    layers: int
    width: int
    vocabulary: int
    parameters: int
    dtype: str
    context: int
    tied: bool
    tokenizer_hash: str
    template_hash: str
    has_chat_template: bool
    pad_token_id: int
    stop_ids: list[int]
    licence: str | None

    @property
    def target_hash(self) -> str:
        """SHA-256 over weights, config and tokenizer: equal for equal models, whatever their name and source."""
        kept = {name: digest for name, digest in self.files.items() if name.endswith(".safetensors")}
        kept |= {"config.json": self.files["config.json"], "tokenizer": self.tokenizer_hash}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a model folder's manifest.

    Raises:
        UserError: The file cannot be written.
    """
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest:
    """Read a model folder's manifest.

    Raises:
        UserError: It is missing, broken, or of another version.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {key}: {first['msg']}; delete the file to fetch the model again") from None


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
