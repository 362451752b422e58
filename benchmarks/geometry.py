"""Geometry of the layers: all pairs beside ckatorch, peak memory, capture of states, exhaustive search."""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from ckatorch.core import cka_base
from figures import alternate, arguments, embedded_target, report

from speclayers.corpus.activations import BATCH_TOKENS, dump_activations
from speclayers.corpus.chat import render
from speclayers.corpus.generator import generate_prompts
from speclayers.geometry.gram import gram_sums, similarity
from speclayers.geometry.products import Share, cheaper_route, inner_products
from speclayers.geometry.rows import RowStore, create_store, open_rows
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.selectors import exhaustive
from speclayers.tables import Origin

BLOCKS = 32
LAYERS = 31


def residual_stream(layers: int, tokens: int, width: int) -> np.ndarray:
    """Return states of which each layer adds to the one before, (layers, tokens, width) float32."""
    generator = np.random.default_rng(0)
    states = np.empty((layers, tokens, width), np.float32)
    states[0] = generator.standard_normal((tokens, width)) * np.linspace(2, 0.2, width) + 1
    for layer in range(1, layers):
        mixing = generator.standard_normal((width, width)).astype(np.float32) / np.sqrt(width)
        states[layer] = states[layer - 1] + np.tanh(states[layer - 1] @ mixing)
    return states


def blocks_of(tokens: int) -> np.ndarray:
    """Deal rows to blocks of equal size, in order."""
    return np.arange(tokens) * BLOCKS // tokens


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def all_pairs(quick: bool) -> None:
    """All pairs of layers at once, beside a loop over pairs, scaled from a sample of them."""
    tokens, sampled = (1024, 4) if quick else (8192, 20)
    states = residual_stream(LAYERS, tokens, 576)
    rows = open_rows(RowStore(states), np.arange(tokens), blocks_of(tokens), "centre")
    pairs = [(a, b) for a in range(LAYERS) for b in range(a + 1, LAYERS)]
    chosen = [pairs[i] for i in np.random.default_rng(1).choice(len(pairs), sampled, replace=False)]
    found = similarity(gram_sums(rows, BLOCKS))
    tensors = {layer: torch.from_numpy(states[layer].astype(np.float64)) for pair in chosen for layer in pair}
    theirs, theirs_biased, times, ours = [], [], [], []
    for place, (a, b) in enumerate(chosen):
        if place % (sampled // 2) == 0:  # ours runs between theirs, so that both see the same machine
            ours.append(seconds(lambda: similarity(gram_sums(rows, BLOCKS))))
        start = time.perf_counter()
        value = cka_base(tensors[a], tensors[b], kernel="linear", method="fro_norm", unbiased=True)
        times.append(time.perf_counter() - start)
        theirs.append(float(value))
    for a, b in chosen[:3]:
        theirs_biased.append(float(cka_base(tensors[a], tensors[b], kernel="linear", method="fro_norm")))
    ratio = statistics.median(times) * len(pairs) / statistics.median(ours)
    report(f"all pairs of {LAYERS} layers, {tokens} tokens, with jackknife sums", ratio, "ratio", "ckatorch", 20)
    for name, values in (("debiased", theirs), ("biased", theirs_biased)):
        own = [getattr(found, name)[pair] for pair in chosen[: len(values)]]
        report(f"{name} CKA, equal digits", digits(own, values), "digits", "ckatorch", 8)


def digits(ours: list[float], theirs: list[float]) -> float:
    """Return the decimals in which the most different values agree, at most 16."""
    return float(-np.log10(max(np.abs(np.subtract(ours, theirs)).max(), 1e-16)))


def memory(quick: bool) -> None:
    """Peak memory at 8 times the tokens of both routes; of the tiles one share only, as each is formed alike."""
    sizes = (8192, 16384) if quick else (8192, 65536)
    peaks: dict[str, list[int]] = {"tiles": [], "covariance": []}
    for tokens in sizes:
        with tempfile.TemporaryDirectory() as folder:
            store = create_store(Path(folder) / "states", (LAYERS, tokens, 64))
            for layer in range(LAYERS):  # a layer at a time: only the engine's memory is measured
                store.put(layer, np.random.default_rng(layer).standard_normal((tokens, 64), dtype=np.float32))
            for route, share in (("tiles", Share(0, 66)), ("covariance", Share(0, 1))):
                tracemalloc.start()
                rows = open_rows(store, np.arange(tokens), blocks_of(tokens), "centre")
                inner_products(rows, BLOCKS, share, route=route)
                peaks[route].append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
    for route, (few, many) in peaks.items():
        name = f"peak memory at width 64, {sizes[1]} over {sizes[0]} tokens, {route}"
        report(name, many / few, "ratio", "itself", 1.1, at_most=True)


def routes(quick: bool) -> None:
    """All pairs of a narrow model's layers by cross-covariances, beside Gram tiles."""
    tokens, width, layers = (4096 if quick else 16384), 128, 13
    states = residual_stream(layers, tokens, width)
    rows = open_rows(RowStore(states), np.arange(tokens), blocks_of(tokens), "centre")
    taken = cheaper_route(tokens, width, layers, BLOCKS)
    found = {route: inner_products(rows, BLOCKS, route=route) for route in ("tiles", "covariance")}
    mine, peer = alternate(
        lambda: inner_products(rows, BLOCKS, route="covariance"), lambda: inner_products(rows, BLOCKS, route="tiles"), 3
    )
    name = f"{layers} layers of width {width}, {tokens} tokens, where {taken} is taken"
    report(name, peer / mine, "ratio", "Gram tiles", 1.0)
    gap = np.abs(found["covariance"] - found["tiles"]).max() / np.abs(found["tiles"]).max()
    report("cross-covariances, equal digits", float(-np.log10(max(gap, 1e-16))), "digits", "Gram tiles", 10)


def capture(target_folder: Path, quick: bool) -> None:
    """Dumping all layers, beside a bare forward pass that returns all hidden states."""
    target = embedded_target(target_folder)
    count, rounds = (16, 1) if quick else (32, 2)
    prompts = [render(target.tokenizer, p.turns, [], {}) for p in generate_prompts(count, 5)]
    sequences = sorted(((prompt * 8)[:128] for prompt in prompts), key=len)
    frame = pd.DataFrame(
        {
            "sample_id": [f"{number:04d}" for number in range(count)],
            "input_ids": sequences,
            "response_start": [len(sequence) // 4 for sequence in sequences],
        }
    )
    size = BATCH_TOKENS // 128

    def bare() -> None:
        with torch.inference_mode():
            for start in range(0, count, size):
                ids = torch.tensor(sequences[start : start + size])
                target.model(ids, output_hidden_states=True, use_cache=False)

    def ours(lens_tokens: int) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                origin = Origin(target.name, "benchmark")
                dump_activations(target, frame, Path(folder) / "manifest.json", origin, 10**6, lens_tokens)

        return run

    for lens_tokens in (0, count * 2):
        mine, peer = alternate(ours(lens_tokens), bare, rounds)
        name = f"dump of all layers, lens at {lens_tokens} of {count * 96} tokens"
        report(name, mine / peer, "ratio", "bare forward, output_hidden_states", 1.25, at_most=True)


def search() -> None:
    """The best of all layer sets by order 2."""
    for layers, k, goal in ((36, 3, 1.0), (80, 4, 20.0)):
        states = np.random.default_rng(0).standard_normal((layers + 1, 200))
        gram = states @ states.T / 200 + np.eye(layers + 1)
        entropy = -np.log(np.diagonal(gram))
        geometry = LayerGeometry(entropy, entropy, gram, gram)
        start = time.perf_counter()
        exhaustive.choose(geometry, k, exhaustive.Options(), np.random.default_rng(0))
        took = time.perf_counter() - start
        report(f"exhaustive over {k} of {layers} layers", took, "s", "none", goal, at_most=True)


def main() -> None:
    """Measure all."""
    options = arguments(__doc__)
    search()
    memory(options.quick)
    routes(options.quick)
    capture(options.target, options.quick)
    all_pairs(options.quick)


if __name__ == "__main__":
    main()
