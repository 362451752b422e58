"""Small activation dumps, written as the dump stage writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from speclayers.geometry.dump import LENS
from speclayers.tables import activation_column


def tokens_frame(prompts=6, prompt_length=3, response=20, seed=0):
    generator = np.random.default_rng(seed)
    length = prompt_length + response
    position = np.tile(np.arange(length), prompts)
    return pd.DataFrame(
        {
            "sample_id": np.repeat([f"p{i:02d}" for i in range(prompts)], length),
            "position": position.astype("int32"),
            "token_id": generator.integers(0, 99, len(position)).astype("int32"),
            "is_response": position >= prompt_length,
            "predictive_entropy": generator.gamma(1.0, 1.0, len(position)),
            "next_logprob": -generator.gamma(1.0, 1.0, len(position)),
            "is_sink": position == 0,
        }
    )


def layered_states(rows, n_layers=6, width=12, seed=0):
    """A residual stream: each layer adds to the one before. (layers + 1, rows, width)"""
    generator = np.random.default_rng(seed)
    states = [generator.standard_normal((rows, width)) * np.linspace(2, 0.3, width)]
    for _ in range(n_layers):
        mixed = np.tanh(states[-1] @ generator.standard_normal((width, width)) / np.sqrt(width))
        states.append(states[-1] + 1.5 * mixed + 0.2 * generator.standard_normal((rows, width)))
    return np.stack(states).astype(np.float32)


def lens_column(tokens, layers):
    """Every other response token read out; the entropy rises to the middle layer, and is higher in later prompts."""
    rise = 3 - np.abs(np.arange(layers) - layers // 2) / layers
    prompt = pd.factorize(tokens["sample_id"])[0]
    read = tokens["is_response"].to_numpy(bool) & (np.arange(len(tokens)) % 2 == 0)
    values = [(rise + 0.01 * p).tolist() if r else None for p, r in zip(prompt, read, strict=True)]
    return pa.array(values, pa.list_(pa.float32()))


def write_dump(folder: Path, tokens=None, states=None, parts=2, model="m", fingerprint="f", part_fingerprint=None):
    """Write parts and manifest.json; return the manifest's path."""
    tokens = tokens_frame() if tokens is None else tokens
    states = layered_states(len(tokens)) if states is None else states
    folder.mkdir(parents=True, exist_ok=True)
    layers, rows, width = states.shape
    table = pa.Table.from_pandas(tokens, preserve_index=False)
    table = table.append_column(LENS, lens_column(tokens, layers))
    for layer in range(layers):
        raw = pa.py_buffer(np.ascontiguousarray(states[layer], dtype="<f4").tobytes())
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4 * width), rows, [None, raw])
        field = pa.field(
            activation_column(layer, layers - 1),
            pa.binary(4 * width),
            metadata={"dtype": "float32", "width": str(width)},
        )
        table = table.append_column(field, column)
    table = table.replace_schema_metadata({"model": model, "fingerprint": part_fingerprint or fingerprint})
    names = []
    for index, chosen in enumerate(np.array_split(np.arange(rows), parts)):
        names.append(f"part-{index:04d}.parquet")
        pq.write_table(table.slice(chosen[0], len(chosen)), folder / names[-1])
    manifest = folder / "manifest.json"
    manifest.write_text(
        json.dumps(
            {
                "model": model,
                "fingerprint": fingerprint,
                "layers": layers - 1,
                "width": width,
                "dtype": "float32",
                "tokens": rows,
                "samples": tokens["sample_id"].nunique(),
                "parts": names,
            }
        )
    )
    return manifest
