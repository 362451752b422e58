"""Training features: the target's states over the training responses, one file a layer.

The store is a folder, filled by one or more passes of the target, each with a manifest of its own.
`tokens.parquet` says which rows belong to which sequence, `l15.safetensors` holds the states of layer 15
as one matrix (tokens, width), and the last layer's file adds what the loss needs of the target's
distribution. A head reads the rows of one sequence at a time from a memory map, which Parquet, compressed
in row groups, cannot give; sample_id and position follow from the index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from speclayers.config import Section
from speclayers.errors import UserError
from speclayers.files import read_json
from speclayers.names import layers_name
from speclayers.tables import Column, Table, read_table
from speclayers.targets.target import Target

NO_TOKEN = -1
INDEX_FILE = "tokens.parquet"

_DTYPE_CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int32: "I32"}

INDEX = Table(
    "features/tokens",
    (
        Column("sample_id", pa.string(), "", "Prompt the sequence answers."),
        Column("offset", pa.int64(), "tokens", "Row of the sequence's first token in every layer's file."),
        Column("length", pa.int64(), "tokens", "Tokens of the sequence, prompt included."),
    ),
)


class FeatureManifest(Section):
    """What one pass of the target stored; written last.

    Args:
        model: Name of the target.
        target_hash: Hash of the target's files.
        key: Hash of what the features depend on; files of another key are not used.
        layers: Layers that the pass made sure of, ascending; the last is N.
        tokens: Rows of every layer's file.
        samples: Sequences.
    """

    model: str
    target_hash: str
    key: str
    layers: tuple[int, ...]
    tokens: int
    samples: int


class TargetRows(NamedTuple):
    """The last layer's rows of some positions.

    Args:
        states: (positions, width) as they enter the final norm.
        best: (positions,) id of the largest next-token logit; −1 at prompt positions.
        logsumexp: (positions,) of the next-token logits in nats; NaN at prompt positions.
    """

    states: Tensor
    best: Tensor
    logsumexp: Tensor


class SequenceFeatures(NamedTuple):
    """What a head learns of one sequence.

    Args:
        states: (tokens, k·width) states of the head's layers, ascending.
        last: The last layer's rows from some position on.
    """

    states: Tensor
    last: TargetRows


class FeatureSource(Protocol):
    """Where training gets the target's states from: a store, or the target itself.

    Args:
        key: Hash of what the states depend on.
    """

    key: str

    def check(self, target: Target, corpus: pd.DataFrame, layers: Sequence[int]) -> None:
        """Make sure that the states of these layers are this target's over this corpus, or raise a UserError."""
        ...

    def read(self, wanted: Sequence[tuple[int, int]], layers: Sequence[int]) -> list[SequenceFeatures]:
        """Return features of sequences.

        Args:
            wanted: Of each its place in the corpus, and the first position whose last layer is wanted.
            layers: Layers of the states, ascending.
        """
        ...


def layer_file(folder: Path, layer: int) -> Path:
    """Return the file of a layer's states: l02.safetensors."""
    return folder / f"{layers_name((layer,))}.safetensors"


def sequence_index(corpus: pd.DataFrame) -> pd.DataFrame:
    """Return which rows of a layer's file belong to which sequence of a corpus."""
    lengths = corpus["input_ids"].map(len).astype("int64")
    return pd.DataFrame(
        {"sample_id": corpus["sample_id"], "offset": lengths.cumsum() - lengths, "length": lengths}
    ).reset_index(drop=True)


class MatrixFile:
    """A safetensors file of known shape whose rows are written in place, in any order.

    The library's writer needs all rows in memory at once; the format is a length, a JSON header and raw bytes.
    """

    def __init__(self, path: Path, tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]], metadata: dict[str, str]):
        """Lay out the file; nothing that is already in it is erased."""
        header: dict[str, Any] = {"__metadata__": metadata}
        start = 0
        self._rows: dict[str, tuple[int, int]] = {}
        for name, (dtype, shape) in tensors.items():
            size = int(np.prod(shape)) * dtype.itemsize
            header[name] = {"dtype": _DTYPE_CODES[dtype], "shape": shape, "data_offsets": [start, start + size]}
            self._rows[name] = (start, size // shape[0])
            start += size
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)  # the format's data is aligned to 8 bytes
        self._data = 8 + len(encoded)
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.write(len(encoded).to_bytes(8, "little") + encoded)
        self._file.truncate(self._data + start)

    def write(self, name: str, row: int, values: Tensor) -> None:
        """Write rows from `row` on."""
        start, row_bytes = self._rows[name]
        self._file.seek(self._data + start + row * row_bytes)
        self._file.write(values.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())

    def flush(self) -> None:
        """Hand everything to the operating system: after that a kill of this process loses nothing."""
        self._file.flush()

    def close(self) -> None:
        """Put everything on disk and close the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _read_manifest(path: Path) -> FeatureManifest:
    try:
        return FeatureManifest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: is no manifest of features: {key}: {first['msg']}; delete it and run again") from None


class FeatureStore:
    """Reads a store, the rows of one sequence at a time.

    Args:
        manifests: One for each pass whose layers are read, of one store.

    Raises:
        UserError: A manifest or file is missing or broken, or the passes ran on different things.
    """

    def __init__(self, manifests: Sequence[Path]) -> None:
        """Read manifests and index."""
        if not manifests:
            raise UserError("--features: names no manifest; expected those of the passes that hold the head's layers")
        self.folder = manifests[0].parent
        passes = [_read_manifest(manifest) for manifest in manifests]
        other = [path for path, one in zip(manifests, passes, strict=True) if one.key != passes[0].key]
        if other:
            raise UserError(f"{other[0]}: was made from other responses than {manifests[0].name}; delete it, run again")
        layers = tuple(sorted({layer for one in passes for layer in one.layers}))
        self.manifest = passes[0].model_copy(update={"layers": layers})
        self.key = self.manifest.key
        self.index = read_table(self.folder / INDEX_FILE, INDEX)
        self._offsets, self._lengths = self.index["offset"].to_numpy(), self.index["length"].to_numpy()
        self._files: dict[int, Any] = {}

    def check(self, target: Target, corpus: pd.DataFrame, layers: Sequence[int]) -> None:
        """Compare the store with what a training asks for.

        Raises:
            UserError: It was made by another model, over other sequences, or lacks a layer.
        """
        made_by, expected = self.manifest.target_hash, target.manifest.target_hash
        if made_by != expected:
            raise UserError(
                f"{self.folder}: holds features of {self.manifest.model} ({made_by[:12]}), not of {target.name} "
                f"({expected[:12]}); delete the folder and run again"
            )
        self._check_corpus(corpus)
        absent = sorted(set(layers) - set(self.manifest.layers))
        if absent:
            raise UserError(f"{self.folder}: holds no layer {absent[0]}; extract features again with this head listed")

    def _check_corpus(self, corpus: pd.DataFrame) -> None:
        wanted = sequence_index(corpus)
        if not wanted.equals(self.index):
            raise UserError(
                f"{self.folder}: holds features of {len(self.index)} other sequences than the corpus's {len(wanted)}; "
                "delete the folder and run again"
            )

    def read(self, wanted: Sequence[tuple[int, int]], layers: Sequence[int]) -> list[SequenceFeatures]:
        """Return features of sequences, as `FeatureSource` says."""
        return [
            SequenceFeatures(
                torch.cat([self.states(layer, place) for layer in layers], dim=-1), self.target_rows(place, start)
            )
            for place, start in wanted
        ]

    def states(self, layer: int, sequence: int) -> Tensor:
        """Return the states (tokens, width) of the corpus's n-th sequence, in the model's precision.

        Raises:
            UserError: The store does not hold the layer.
        """
        return self._rows(layer, "states", sequence, 0)

    def target_rows(self, sequence: int, start: int) -> TargetRows:
        """Return the last layer's rows of a sequence's positions from `start` on."""
        last = self.manifest.layers[-1]
        states, best, logsumexp = (
            self._rows(last, name, sequence, start) for name in ("states", "next_argmax", "logsumexp")
        )
        return TargetRows(states, best.long(), logsumexp)

    def _rows(self, layer: int, name: str, sequence: int, start: int) -> Tensor:
        first = int(self._offsets[sequence])
        rows: Tensor = self._open(layer).get_slice(name)[first + start : first + int(self._lengths[sequence])]
        return rows

    def _open(self, layer: int) -> Any:
        if layer not in self._files:
            path = layer_file(self.folder, layer)
            if layer not in self.manifest.layers:
                raise UserError(f"{self.folder}: holds no layer {layer} of the passes given; extract it first")
            try:
                file: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path}: cannot be read ({error}); delete it and its manifest, run again") from None
            if (file.metadata() or {}).get("key") != self.manifest.key:
                raise UserError(f"{path}: belongs to other features than its manifest; delete both and run again")
            self._files[layer] = file
        return self._files[layer]
