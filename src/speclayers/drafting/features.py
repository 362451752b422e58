"""Features of the target for training: stored by one pass for all heads' layers, or made anew for every batch."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from speclayers.drafting.feature_store import (
    INDEX,
    INDEX_FILE,
    NO_TOKEN,
    FeatureManifest,
    FeatureStore,
    MatrixFile,
    SequenceFeatures,
    TargetRows,
    layer_file,
    sequence_index,
)
from speclayers.errors import UserError
from speclayers.files import read_json, write_json
from speclayers.tables import Origin, write_table
from speclayers.targets.capture import capture_states
from speclayers.targets.staging import resumable_folder
from speclayers.targets.target import Target

TOKENS_PER_BATCH = 2048
LOGIT_ROWS = 256
LOGGED_LINES = 10

logger = logging.getLogger(__name__)


def store_key(target: Target, corpus: pd.DataFrame, fingerprint: str) -> str:
    """Return a hash of what the features depend on: target, precision, tokens and the stage's fingerprint."""
    digest = hashlib.sha256(f"{fingerprint}/{target.manifest.target_hash}/{target.runtime.dtype}".encode())
    for row in corpus.itertuples():
        digest.update(f"/{row.sample_id}/{row.response_start}/".encode())
        digest.update(np.asarray(row.input_ids, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def extract(
    target: Target, corpus: pd.DataFrame, layers: Collection[int], manifest: Path, work: Path, origin: Origin
) -> FeatureManifest:
    """Run the target once over all sequences and store the layers that the store does not hold yet.

    A killed run continues after the last batch written. Files of another key are deleted.

    Args:
        target: The model.
        corpus: Rows of the corpus table.
        layers: Layers wanted; the last one is always stored.
        manifest: Written last, beside the layers' files: what this pass made sure of.
        work: Folder of unfinished files, on the same file system.
        origin: Goes into the index's metadata; its fingerprint is part of the key.

    Raises:
        UserError: The corpus is empty or not the target's, a layer does not exist, or a file cannot be written.
    """
    beyond = [layer for layer in layers if layer > target.n_layers]
    if beyond:
        raise UserError(f"layer {beyond[0]} does not exist; {target.name} has layers 0 to {target.n_layers}")
    check_tokens(target, corpus)
    key = store_key(target, corpus, origin.fingerprint)
    folder = manifest.parent
    folder.mkdir(parents=True, exist_ok=True)
    held = _held_layers(folder, key)
    wanted = {*layers, target.n_layers}
    missing = sorted(wanted - held)
    index = sequence_index(corpus)
    tokens = int(index["length"].sum())
    if missing:
        manifest.unlink(missing_ok=True)
        logger.info("features: layers %s over %d tokens", ", ".join(map(str, missing)), tokens)
        with resumable_folder(work, f"{origin.fingerprint}-{key}") as staging:
            files = _run(target, corpus, index, missing, staging, key)
            write_table(folder / INDEX_FILE, INDEX, index, origin)
            for layer, file in files.items():
                _move(file, layer_file(folder, layer))
    stored = FeatureManifest(
        model=target.name,
        target_hash=target.manifest.target_hash,
        key=key,
        layers=tuple(sorted(wanted)),
        tokens=tokens,
        samples=len(index),
    )
    write_json(manifest, stored.model_dump(mode="json"))
    return stored


def check_tokens(target: Target, corpus: pd.DataFrame) -> None:
    """Make sure that a target can read a corpus.

    Raises:
        UserError: There is no sequence, or a token has no row in the target's embedding.
    """
    if corpus.empty:
        raise UserError("training corpus: holds no sequence; raise corpus.training.count or max_prompt_tokens")
    for sample_id, ids in zip(corpus["sample_id"], corpus["input_ids"], strict=True):
        highest = int(np.max(ids, initial=0))
        if highest >= target.vocabulary:
            raise UserError(
                f"training corpus: sample {sample_id} holds token {highest}, but {target.name} has "
                f"{target.vocabulary} tokens; expected a tokenizer that fits the model"
            )


class OnlineFeatures:
    """Features that the target makes when they are asked for: nothing is stored, and every visit costs a forward pass.

    Args:
        target: The model.
        corpus: Rows of the corpus.

    Raises:
        UserError: The corpus is empty or not the target's.
    """

    def __init__(self, target: Target, corpus: pd.DataFrame) -> None:
        """Check the corpus."""
        check_tokens(target, corpus)
        self._target, self._corpus = target, corpus
        self.key = store_key(target, corpus, "online")

    def check(self, target: Target, corpus: pd.DataFrame, layers: Sequence[int]) -> None:
        """Compare with what a training asks for.

        Raises:
            UserError: It asks for another model or corpus.
        """
        if store_key(target, corpus, "online") != self.key:
            raise UserError(f"features of {self._target.name}: the training is of another model or corpus")

    def read(self, wanted: Sequence[tuple[int, int]], layers: Sequence[int]) -> list[SequenceFeatures]:
        """Return features of sequences, as `FeatureSource` says; a few forward passes for all of them."""
        lengths = np.array([len(self._corpus["input_ids"].iloc[place]) for place, _ in wanted])
        made: dict[int, SequenceFeatures] = {}
        for batch in _batches(lengths):
            rows = self._corpus.iloc[[wanted[number][0] for number in batch]]
            starts = zip(rows["response_start"], (wanted[number][1] for number in batch), strict=True)
            forward = _forward(self._target, rows, sorted({*layers, self._target.n_layers}))
            for number, (response_start, start), states in zip(batch, starts, forward, strict=True):
                last = states[self._target.n_layers]
                best, logsumexp = _distribution(self._target, last, int(response_start))
                rows_wanted = TargetRows(last[start:].clone(), best[start:].long(), logsumexp[start:])
                joined = torch.cat([states[layer].to(self._target.device) for layer in layers], dim=-1)
                made[number] = SequenceFeatures(joined, rows_wanted)
        return [made[number] for number in range(len(wanted))]


def feature_source(
    kind: str, target: Target, corpus: pd.DataFrame, manifests: Sequence[Path]
) -> OnlineFeatures | FeatureStore:
    """Return the features that a training reads.

    Args:
        kind: "cached" or "online".
        target: The model.
        corpus: Rows of the corpus.
        manifests: Of the passes that stored them; not looked at where the target makes them anew.

    Raises:
        UserError: The corpus is not the target's, or a manifest or file is missing or broken.
    """
    return OnlineFeatures(target, corpus) if kind == "online" else FeatureStore(manifests)


def _held_layers(folder: Path, key: str) -> set[int]:
    """Return the layers stored under this key; delete files of another key and broken ones."""
    held = set()
    for path in sorted(folder.glob("l*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
        except (SafetensorError, OSError):
            metadata = {}
        if metadata.get("key") == key:
            held.add(int(metadata["layer"]))
        else:
            path.unlink(missing_ok=True)  # another pass may have removed it
    return held if (folder / INDEX_FILE).exists() else set()


def _move(source: Path, destination: Path) -> None:
    try:
        source.replace(destination)
    except OSError as error:
        raise UserError(f"{destination}: cannot be moved from {source}: {error.strerror or error}") from error


def _run(
    target: Target, corpus: pd.DataFrame, index: pd.DataFrame, layers: Sequence[int], staging: Path, key: str
) -> dict[int, Path]:
    """Write the layers' files into `staging`, batch by batch; return them."""
    paths = {layer: layer_file(staging, layer) for layer in layers}
    batches = _batches(index["length"].to_numpy())
    progress = staging / "progress.json"
    done = _batches_done(progress, layers)
    files = {layer: _open_file(path, layer, target, int(index["length"].sum()), key) for layer, path in paths.items()}
    shown = sum(int(index["length"].iloc[batch].sum()) for batch in batches[:done])
    with tqdm(total=int(index["length"].sum()), initial=shown, unit="tok", disable=None, mininterval=1) as bar:
        for number, batch in enumerate(batches[done:], start=done + 1):
            rows = corpus.iloc[batch]
            for position, sequence in enumerate(_forward(target, rows, layers)):
                _write_sequence(target, files, sequence, index.iloc[batch[position]], rows.iloc[position])
            for file in files.values():
                file.flush()
            write_json(progress, {"batches": number, "layers": list(layers)})
            bar.update(int(index["length"].iloc[batch].sum()))
            if bar.disable and number % max(len(batches) // LOGGED_LINES, 1) == 0:
                logger.info("features: %d of %d batches", number, len(batches))
    for file in files.values():
        file.close()
    return paths


def _batches(lengths: np.ndarray) -> list[list[int]]:
    """Group sequences of like length, longest first, into batches of at most TOKENS_PER_BATCH padded tokens."""
    order = np.argsort(-lengths, kind="stable").tolist()
    batches: list[list[int]] = []
    for sequence in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= TOKENS_PER_BATCH:
            batches[-1].append(sequence)
        else:
            batches.append([sequence])
    return batches


def _batches_done(progress: Path, layers: Sequence[int]) -> int:
    if not progress.exists():
        return 0
    state = read_json(progress)
    if state["layers"] != list(layers):
        return 0  # other layers were wanted then: their files lack the batches before now
    logger.info("features: continuing after batch %d", state["batches"])
    return int(state["batches"])


def _open_file(path: Path, layer: int, target: Target, tokens: int, key: str) -> MatrixFile:
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"states": (target.dtype, (tokens, target.width))}
    if layer == target.n_layers:
        tensors |= {"next_argmax": (torch.int32, (tokens,)), "logsumexp": (torch.float32, (tokens,))}
    return MatrixFile(path, tensors, {"key": key, "layer": str(layer)})


@torch.inference_mode()
def _forward(target: Target, rows: pd.DataFrame, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Yield each sequence's states by layer, (tokens, width); padding is on the right, where causality hides it."""
    sequences = [torch.from_numpy(np.asarray(ids, dtype=np.int64)) for ids in rows["input_ids"]]
    longest = max(len(ids) for ids in sequences)
    ids = torch.full((len(sequences), longest), target.manifest.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    with capture_states(target, layers) as captured:
        inputs = {"input_ids": ids.to(target.device), "attention_mask": mask.to(target.device)}
        target.anatomy.body(**inputs, use_cache=False)
        for row, sequence in enumerate(sequences):
            yield {layer: captured[layer][row, : len(sequence)] for layer in layers}


@torch.inference_mode()
def _write_sequence(
    target: Target, files: dict[int, MatrixFile], states: dict[int, Tensor], entry: pd.Series, row: pd.Series
) -> None:
    for layer, file in files.items():
        file.write("states", int(entry["offset"]), states[layer])
    if target.n_layers not in files:
        return
    best, logsumexp = _distribution(target, states[target.n_layers], int(row["response_start"]))
    files[target.n_layers].write("next_argmax", int(entry["offset"]), best)
    files[target.n_layers].write("logsumexp", int(entry["offset"]), logsumexp)


def _distribution(target: Target, last: Tensor, response_start: int) -> tuple[Tensor, Tensor]:
    """Return the best next token (n,) and the logits' logsumexp (n,), at response positions only.

    The LM head is the widest layer: it runs on some rows at a time, and not on prompts, which the loss never asks for.
    """
    best = torch.full((len(last),), NO_TOKEN, dtype=torch.int32)
    logsumexp = torch.full((len(last),), float("nan"))
    for start in range(response_start, len(last), LOGIT_ROWS):
        logits = target.logits(last[start : start + LOGIT_ROWS]).float()
        best[start : start + LOGIT_ROWS] = logits.argmax(-1).int().cpu()
        logsumexp[start : start + LOGIT_ROWS] = logits.logsumexp(-1).cpu()
    return best, logsumexp
