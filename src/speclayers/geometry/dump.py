"""Reading the activation dump: one Parquet row a token, one column a layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from speclayers.errors import UserError
from speclayers.files import read_json
from speclayers.tables import Origin, activation_column

TOKEN_COLUMNS = [
    "sample_id",
    "position",
    "token_id",
    "is_response",
    "predictive_entropy",
    "next_logprob",
    "is_sink",
]

LENS = "lens_entropy"
"""Column that holds, of a few rows, one vocabulary entropy a layer; the others are null."""

NORMS = "norms"
"""Column of each row's norm in every layer, by which sinks are told."""

_STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class Dump:
    """An activation dump whose parts were checked against its manifest.

    Args:
        model: Name of the model.
        n_layers: Number of decoder blocks N; the dump holds layers 0 … N.
        width: Width of the residual stream.
        tokens: Rows over all parts.
        parts: The Parquet files, in order.
    """

    model: str
    n_layers: int
    width: int
    tokens: int
    parts: tuple[Path, ...]


def open_dump(manifest: Path, expected: Origin | None = None) -> Dump:
    """Read a dump's manifest and check its parts against it.

    Args:
        manifest: `activations/manifest.json`; the parts lie beside it.
        expected: Model and fingerprint of the dump that the job is about; any when not given.

    Raises:
        UserError: The manifest or a part is missing, truncated, or belongs to another run.
    """
    entries = read_json(manifest)
    try:
        found = Dump(
            model=str(entries["model"]),
            n_layers=int(entries["layers"]),
            width=int(entries["width"]),
            tokens=int(entries["tokens"]),
            parts=tuple(manifest.parent / name for name in entries["parts"]),
        )
        fingerprint = str(entries["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{manifest}: is no manifest of an activation dump ({error!r})") from None
    if expected is not None and found.model != expected.model:
        raise UserError(f"{manifest}: is of model {found.model}, expected {expected.model}")
    if expected is not None and fingerprint != expected.fingerprint:
        raise UserError(
            f"{manifest}: fingerprint is {fingerprint!r}, expected {expected.fingerprint!r}: the dump is of other "
            "settings or another version; delete it and run again"
        )
    rows = [_check_part(part, found, fingerprint) for part in found.parts]
    if sum(rows) != found.tokens:
        raise UserError(
            f"{manifest}: the parts hold {sum(rows)} tokens, expected {found.tokens}; delete the dump and run again"
        )
    return found


def _check_part(part: Path, dump: Dump, fingerprint: str) -> int:
    """Check one part's origin and columns; return its number of rows."""
    metadata = _parquet(part, pq.read_metadata)
    schema = _parquet(part, pq.read_schema)
    entries = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items() if key != b"pandas"}
    for key, expected in (("model", dump.model), ("fingerprint", fingerprint)):
        if entries.get(key) != expected:
            raise UserError(
                f"{part}: {key} is {entries.get(key)!r}, expected {expected!r} as in the manifest; "
                "delete the dump and run again"
            )
    layers = [activation_column(layer, dump.n_layers) for layer in range(dump.n_layers + 1)]
    missing = [name for name in (*TOKEN_COLUMNS, LENS, *layers) if name not in schema.names]
    if missing:
        raise UserError(f"{part}: column {missing[0]} is missing; delete the dump and run again")
    return int(metadata.num_rows)


def read_tokens(parts: Sequence[Path]) -> pd.DataFrame:
    """Read everything about the tokens except their states.

    Args:
        parts: Parquet files of the dump, in order.

    Returns:
        One row a token, in the order of the dump.

    Raises:
        UserError: A part is missing or truncated.
    """
    tables = [_parquet(part, lambda p: pq.read_table(p, columns=TOKEN_COLUMNS, partitioning=None)) for part in parts]
    frame: pd.DataFrame = pa.concat_tables([t.replace_schema_metadata(None) for t in tables]).to_pandas()
    return frame


def read_lens(parts: Sequence[Path], n_layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the entropies of the logit lens, which were computed for a sample of the rows.

    Args:
        parts: Parquet files of the dump, in order.
        n_layers: Number of decoder blocks N.

    Returns:
        Row numbers (rows,), and the entropies over the vocabulary (rows, N + 1) in nats.

    Raises:
        UserError: A part is missing or truncated, or holds another number of layers.
    """
    tables = [_parquet(part, lambda p: pq.read_table(p, columns=[LENS], partitioning=None)) for part in parts]
    column = pa.concat_tables([t.replace_schema_metadata(None) for t in tables]).column(LENS).combine_chunks()
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    if len(values) != len(rows) * (n_layers + 1):
        raise UserError(f"{parts[0]}: column {LENS} does not hold {n_layers + 1} layers; delete the dump and run again")
    return rows, values.reshape(len(rows), n_layers + 1)


def read_layer(parts: Sequence[Path], layer: int) -> np.ndarray:
    """Read one layer's states.

    Args:
        parts: Parquet files of the dump, in order.
        layer: Layer index, 0 … N.

    Returns:
        (tokens, width) float32, which holds every stored precision exactly.

    Raises:
        UserError: A part is missing or truncated, has no such layer, or holds a NaN or an infinity.
    """
    return np.concatenate([_read_part_layer(part, layer) for part in parts])


def check_rows(states: np.ndarray, tokens: int, layer: int) -> None:
    """Refuse a layer of another length than the dump.

    Args:
        states: The layer's states, (rows, width).
        tokens: Rows expected.
        layer: Layer index, for the message.

    Raises:
        UserError: The row counts differ.
    """
    if len(states) != tokens:
        raise UserError(f"activations: layer {layer} has {len(states)} rows, expected {tokens}; delete the dump")


def _read_part_layer(part: Path, layer: int) -> np.ndarray:
    schema = _parquet(part, pq.read_schema)
    column = next((name for name in schema.names if re.fullmatch(rf"h0*{layer}", name)), None)
    if column is None:
        raise UserError(f"{part}: has no layer {layer}")
    table = _parquet(part, lambda p: pq.read_table(p, columns=[column], partitioning=None))
    metadata = schema.field(column).metadata or {}
    stored, width = metadata.get(b"dtype", b"").decode(), int(metadata.get(b"width", b"0"))
    if stored not in _STORED or schema.field(column).type != pa.binary(width * _STORED[stored].itemsize):
        raise UserError(f"{part}: column {column} is not fixed-size binary with its dtype and width; delete the dump")
    chunks = [_floats(chunk, stored, width) for chunk in table.column(column).chunks]
    states = np.concatenate(chunks) if chunks else np.empty((0, width), np.float32)
    broken = np.flatnonzero(~np.isfinite(states).all(axis=1))
    if broken.size:
        samples = _parquet(part, lambda p: pq.read_table(p, columns=["sample_id"], partitioning=None))
        sample = samples.column("sample_id")[int(broken[0])].as_py()
        raise UserError(
            f"{part}: layer {layer} of sample {sample} holds NaN or infinity in {broken.size} tokens; "
            "expected finite states; run the model in another dtype"
        )
    return states


def _floats(chunk: pa.Array, stored: str, width: int) -> np.ndarray:
    """View a chunk of fixed-size binary values as (rows, width) float32."""
    raw = np.frombuffer(chunk.buffers()[1], dtype=_STORED[stored])
    rows = raw[chunk.offset * width : (chunk.offset + len(chunk)) * width].reshape(len(chunk), width)
    if stored == "bfloat16":  # the upper half of a float32
        return np.asarray((rows.astype(np.uint32) << 16).view(np.float32))
    return np.asarray(rows, dtype=np.float32)


def _parquet(part: Path, read: Any) -> Any:
    """Read from a part, telling what is wrong with it in one line."""
    try:
        return read(part)
    except FileNotFoundError:
        raise UserError(f"{part}: file is missing; delete the dump and run again") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{part}: is no readable Parquet file ({error}); delete the dump and run again") from None
