"""The activation dump: the states of all layers at the tokens that statistics are computed on.

Rows are the response tokens of every sequence and, before them, its first token, which the switch
"sinks kept" adds back; other prompt tokens are used nowhere and are left out. A part holds whole
sequences, about PART_ROWS rows. A row is a sink if it is at position 0 or if its norm exceeds
SINK_FACTOR times the median norm of the response rows in any layer. The medians are known only when all
parts are: a part is first flagged by its own, and written again if the flags then turn out different,
which is rare. The norms stand in a column of their own, so that no state is read for this.

Of a few response tokens the prediction is also read off every layer, through the final norm and the LM
head (the logit lens), since later stages have no model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from speclayers.errors import UserError
from speclayers.files import atomic_path, write_json
from speclayers.geometry.dump import LENS, NORMS
from speclayers.tables import Origin, activation_column, read_origin
from speclayers.targets.capture import CapturedStates, capture_states
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)

PART_ROWS = 4096
SINK_FACTOR = 10.0
BATCH_TOKENS = 2048
"""Padded tokens of one forward pass."""
LOGIT_ROWS = 128
"""Rows whose logits are held at once; a row has as many as the vocabulary, and larger blocks leave the caches."""
SINK = "is_sink"
_LENS_SEED = 0  # fixed: which tokens are read out is no setting of a study
LOG_EVERY_S = 30.0


class _Sequence(NamedTuple):
    """A prompt with its response."""

    sample_id: str
    ids: list[int]
    response_start: int
    lens: tuple[int, ...] = ()
    """Positions at which the prediction is read off every layer."""

    @property
    def positions(self) -> list[int]:
        """Positions that become rows."""
        first = [0] if self.response_start > 0 else []
        return [*first, *range(self.response_start, len(self.ids))]


@dataclass
class _Rows:
    """Rows of one sequence, in the order of their positions.

    Args:
        states: (N + 1, rows, width), in the model's precision.
        norms: (N + 1, rows) float32.
        entropy: (rows,) predictive entropy in nats.
        next_logprob: (rows,) log-probability of the token that follows; NaN where none does.
        lens: Vocabulary entropies of every layer, (N + 1,) in nats, by position.
    """

    states: torch.Tensor
    norms: torch.Tensor
    entropy: torch.Tensor
    next_logprob: torch.Tensor
    lens: dict[int, list[float]]


def dump_activations(
    target: Target, corpus: pd.DataFrame, manifest: Path, origin: Origin, max_tokens: int, lens_tokens: int
) -> None:
    """Dump all layers' states over a corpus into Parquet parts beside a manifest, which is written last.

    Parts that an interrupted run with the same origin, target and sequences left are kept.

    Args:
        target: The model.
        corpus: Rows of the table CORPUS.
        manifest: Path of the manifest; its folder receives the parts.
        origin: Goes into the parts' metadata.
        max_tokens: Response tokens used at most: whole sequences from the first on, until reached.
        lens_tokens: Response tokens, drawn at random, at which the prediction is read off every layer.

    Raises:
        UserError: The corpus is empty, or a state is not finite.
    """
    manifest.parent.mkdir(parents=True, exist_ok=True)
    sequences = _with_lens(_choose(corpus, max_tokens), lens_tokens)
    if not sequences:
        raise UserError(f"{target.name}: the corpus has no response tokens to measure")
    parts = _split(sequences)
    paths = [manifest.parent / f"part-{number:04d}.parquet" for number in range(len(parts))]
    for stale in set(manifest.parent.glob("part-*.parquet")) - set(paths):
        stale.unlink()
    started = logged = time.monotonic()
    for number, (part, path) in enumerate(zip(tqdm(parts, desc="parts", disable=None), paths, strict=True), 1):
        _write_part(target, part, path, origin)
        if time.monotonic() - logged > LOG_EVERY_S:
            logged = time.monotonic()
            logger.info("%s: %d of %d parts, %.0f s", target.name, number, len(parts), logged - started)
    _flag_sinks(paths)
    rows = sum(len(sequence.positions) for sequence in sequences)
    entries = {"model": origin.model, "fingerprint": origin.fingerprint, "layers": target.n_layers}
    entries |= {"width": target.width, "dtype": target.runtime.dtype, "tokens": rows, "samples": len(sequences)}
    write_json(manifest, entries | {"parts": [path.name for path in paths]})


def _choose(corpus: pd.DataFrame, max_tokens: int) -> list[_Sequence]:
    chosen: list[_Sequence] = []
    tokens = 0
    columns = (corpus["sample_id"], corpus["input_ids"], corpus["response_start"])
    for sample_id, ids, start in zip(*columns, strict=True):
        length = len(ids) - int(start)
        if length == 0:
            continue
        if chosen and tokens + length > max_tokens:
            break
        chosen.append(_Sequence(str(sample_id), [int(token) for token in ids], int(start)))
        tokens += length
    return chosen


def _with_lens(sequences: list[_Sequence], count: int) -> list[_Sequence]:
    """Draw response positions for the logit lens, position 0 left out; all where there are no more."""
    places = [
        (number, position)
        for number, sequence in enumerate(sequences)
        for position in range(max(1, sequence.response_start), len(sequence.ids))
    ]
    drawn = np.random.default_rng(_LENS_SEED).permutation(len(places))[:count]
    positions: dict[int, list[int]] = {}
    for place in np.sort(drawn):
        number, position = places[place]
        positions.setdefault(number, []).append(position)
    return [sequence._replace(lens=tuple(positions.get(n, ()))) for n, sequence in enumerate(sequences)]


def _split(sequences: Sequence[_Sequence]) -> list[list[_Sequence]]:
    """Form parts of at least PART_ROWS rows; a last part under half of that joins the one before it."""
    parts: list[list[_Sequence]] = []
    rows = PART_ROWS
    for sequence in sequences:
        if rows >= PART_ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(sequence)
        rows += len(sequence.positions)
    if len(parts) > 1 and rows < PART_ROWS / 2:
        last = parts.pop()
        parts[-1] += last
    return parts


# ---------------------------------------------------------------- one part


def _write_part(target: Target, part: list[_Sequence], path: Path, origin: Origin) -> None:
    """Compute and write a part unless it is there already."""
    settings = [target.manifest.target_hash, target.runtime.dtype, PART_ROWS, SINK_FACTOR]
    contents = hashlib.sha256(json.dumps([*settings, part]).encode()).hexdigest()
    metadata = origin.metadata() | {"contents": contents}
    if path.is_file() and read_origin(path) == metadata:
        return
    rows = _run(target, part)
    table = _table(target, part, rows).replace_schema_metadata(metadata)
    _write(path, table)


def _write(path: Path, table: pa.Table) -> None:
    with atomic_path(path) as temporary:
        # Mantissas do not compress, and dictionaries of distinct states only cost time.
        pq.write_table(table, temporary, compression="none", use_dictionary=["sample_id"])


def _run(target: Target, part: list[_Sequence]) -> list[_Rows]:
    found: dict[int, _Rows] = {}
    with torch.inference_mode(), capture_states(target, range(target.n_layers + 1)) as captured:
        for places in _batches(part):
            longest = max(len(part[place].ids) for place in places)
            pad = target.manifest.pad_token_id
            # Padding follows the text, where causal attention keeps it from being seen: no mask is needed.
            padded = [part[place].ids + [pad] * (longest - len(part[place].ids)) for place in places]
            target.model(torch.tensor(padded, device=target.device), use_cache=False, logits_to_keep=1)
            for row, place in enumerate(places):
                found[place] = _rows(target, part[place], captured, row)
    return [found[place] for place in range(len(part))]


def _batches(part: list[_Sequence]) -> Iterator[list[int]]:
    """Group sequences of similar length, as places in the part, longest first."""
    batch: list[int] = []
    for place in sorted(range(len(part)), key=lambda p: (-len(part[p].ids), p)):
        if batch and (len(batch) + 1) * len(part[batch[0]].ids) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    yield batch


def _rows(target: Target, sequence: _Sequence, captured: CapturedStates, row: int) -> _Rows:
    positions = torch.tensor(sequence.positions)
    states = [captured[layer][row][positions.to(captured[layer].device)] for layer in range(target.n_layers + 1)]
    ids = torch.tensor([*sequence.ids, 0])[positions + 1]  # the last has no successor; its value is dropped below
    entropy, logprob = _next_token(target, states[-1], ids)
    logprob[-1] = float("nan")
    norms = torch.stack([layer.float().norm(dim=-1).cpu() for layer in states])
    _check_finite(target, sequence, norms)
    lens = _read_out(target, sequence, states)
    return _Rows(torch.stack([layer.cpu() for layer in states]), norms, entropy, logprob, lens)


def _read_out(target: Target, sequence: _Sequence, states: list[torch.Tensor]) -> dict[int, list[float]]:
    """Return the vocabulary entropies of every layer at the sequence's lens positions."""
    if not sequence.lens:
        return {}
    rows = [sequence.positions.index(position) for position in sequence.lens]
    last = states[-1].device
    chosen = torch.stack([layer[rows].to(last) for layer in states], dim=1)  # (tokens, N + 1, width)
    entropy, _ = _next_token(target, chosen.flatten(0, 1), torch.zeros(chosen[..., 0].numel(), dtype=torch.long))
    return dict(zip(sequence.lens, entropy.reshape(len(rows), -1).tolist(), strict=True))


def _next_token(target: Target, last: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the predictive entropy and the log-probability of `ids` at each row of layer N's states."""
    entropies, logprobs = [], []
    for states, following in zip(torch.split(last, LOGIT_ROWS), torch.split(ids, LOGIT_ROWS), strict=True):
        logits = target.logits(states).float()
        log_sum = logits.logsumexp(dim=-1)
        # H = log Z - E[logit]: one pass over the vocabulary less than from the log-probabilities
        entropies.append((log_sum - torch.linalg.vecdot((logits - log_sum[:, None]).exp_(), logits)).cpu())
        logprobs.append((logits.gather(1, following.to(logits.device)[:, None])[:, 0] - log_sum).cpu())
    return torch.cat(entropies), torch.cat(logprobs)


def _check_finite(target: Target, sequence: _Sequence, norms: torch.Tensor) -> None:
    broken = (~norms.isfinite()).any(dim=1).nonzero()[:, 0]
    if len(broken):
        raise UserError(
            f"{target.name}: layer {int(broken[0])} of sample {sequence.sample_id} holds NaN or infinity "
            f"in {target.runtime.dtype}; expected finite states, try another dtype"
        )


# ---------------------------------------------------------------- columns


def _table(target: Target, part: list[_Sequence], rows: list[_Rows]) -> pa.Table:
    positions = np.concatenate([sequence.positions for sequence in part])
    response = np.concatenate([np.array(s.positions) >= s.response_start for s in part])
    norms = torch.cat([r.norms for r in rows], dim=1).numpy()
    logprob = torch.cat([r.next_logprob for r in rows]).numpy()
    columns = {
        "sample_id": pa.array([s.sample_id for s in part for _ in s.positions], pa.string()),
        "position": pa.array(positions, pa.int32()),
        "token_id": pa.array([s.ids[p] for s in part for p in s.positions], pa.int32()),
        "is_response": pa.array(response, pa.bool_()),
        "predictive_entropy": pa.array(torch.cat([r.entropy for r in rows]).numpy(), pa.float32()),
        "next_logprob": pa.array(logprob, pa.float32(), mask=np.isnan(logprob)),
        SINK: pa.array((positions == 0) | _outliers(norms, response), pa.bool_()),
        NORMS: pa.FixedSizeListArray.from_arrays(pa.array(norms.T.ravel(), pa.float32()), len(norms)),
    }
    lens = [r.lens.get(position) for s, r in zip(part, rows, strict=True) for position in s.positions]
    columns[LENS] = pa.array(lens, pa.list_(pa.float32()))
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    arrays = list(columns.values())
    for layer in range(target.n_layers + 1):
        values = _binary(torch.cat([r.states[layer] for r in rows]))
        metadata = {"dtype": target.runtime.dtype, "width": str(target.width)}
        fields.append(pa.field(activation_column(layer, target.n_layers), values.type, metadata=metadata))
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _outliers(norms: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Mark rows whose norm (N + 1, rows) exceeds the limit in any layer."""
    medians = np.median(norms[:, response], axis=1, keepdims=True)
    marked: np.ndarray = (norms > SINK_FACTOR * medians).any(axis=0)
    return marked


def _flag_sinks(paths: Sequence[Path]) -> None:
    """Flag the sinks by the medians over all parts; memory is that of one norm a row and layer.

    Args:
        paths: All parts.
    """
    wanted = ["position", "is_response", SINK, NORMS]
    parts = [pq.read_table(path, columns=wanted, partitioning=None) for path in paths]
    columns = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
    position, response, before = (columns[name].to_numpy() for name in wanted[:3])
    norms = columns[NORMS].combine_chunks().flatten().to_numpy().reshape(len(position), -1)
    sinks = (position == 0) | _outliers(norms.T, response)
    start = 0
    for path, part in zip(paths, parts, strict=True):
        own = slice(start, start + part.num_rows)
        start = own.stop
        if (sinks[own] != before[own]).any():
            logger.info("%s: flagging %d sinks by the medians over all parts", path, sinks[own].sum())
            table = pq.read_table(path, partitioning=None)
            place = table.schema.get_field_index(SINK)
            _write(path, table.set_column(place, table.schema.field(place), pa.array(sinks[own], pa.bool_())))


def _binary(states: torch.Tensor) -> pa.Array:
    """Pack states (rows, width) into one fixed-size binary value a row, in their own precision."""
    # Lists of floats write 6 times and read 7 times slower.
    rows, width = states.shape
    raw = states.contiguous()
    if raw.dtype == torch.bfloat16:  # unknown to numpy
        raw = raw.view(torch.int16)
    kind = pa.binary(width * raw.element_size())
    return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(raw.numpy())])
