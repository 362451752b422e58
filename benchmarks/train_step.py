"""An optimiser step of training-time test beside other packages' on the same row; reading dumped layers.

Sizes are SmolLM2-135M's: width 576, draft vocabulary 8192, three layers, TTT 3, about 512 tokens packed in a row.
A step is the target's distribution from its last states, forward, backward, clipping and AdamW. speculators
keeps its LM head frozen; this project trains its own, so it computes and applies one gradient more. Each takes its
default loss, soft cross-entropy here and KL there, whose gradients are equal. SpecForge also reads the whole
vocabulary for an acceptance rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from figures import alternate, arguments, embedded_target, report
from train_step_peers import Document, Row, specforge_step, speculators_step, take_step

from speclayers.config import DraftConfig, SplitConfig
from speclayers.corpus.activations import dump_activations
from speclayers.corpus.generator import generate_prompts
from speclayers.corpus.responses import generate_responses
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.training_data import restricted_target
from speclayers.drafting.ttt import TTTSequence, TTTTargets, counted_slots, first_response_slot, ttt_loss
from speclayers.drafting.vocabulary import DraftVocabulary
from speclayers.geometry.dump import open_dump, read_layer
from speclayers.tables import Origin
from speclayers.targets.target import Target

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (2, 15, 27)
DRAFT_VOCABULARY = 8192
STEPS = 3
DECAY = 0.8
PEERS = {
    "speculators 0.9.0, LM head frozen": speculators_step,
    "SpecForge 0.2.0, its reference loss": specforge_step,
}
ROW = 512


def make_row(target: Target, sequences: Sequence[tuple[list[int], int]]) -> Row:
    """Return a row of (tokens, response start)."""
    generator = torch.Generator().manual_seed(0)
    documents = []
    for ids, start in sequences:
        slots, width = len(ids) - 1, target.width
        states = torch.randn(slots, len(LAYERS) * width, generator=generator)
        documents.append(Document(torch.tensor(ids), start, states, torch.randn(slots, width, generator=generator)))
    return Row(documents)


def our_step(target: Target, head: Eagle3Head, row: Row) -> Callable[[], float]:
    """Return a function that takes one step of ours."""
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-4, fused=True)
    restricted = restricted_target(target, head.draft_ids)
    embedded = [target.embed(document.ids).detach() for document in row.documents]
    firsts = [first_response_slot(document.response_start) for document in row.documents]
    stops = target.stop_ids
    counted = torch.cat([counted_slots(d.ids, d.response_start, stops, STEPS) for d in row.documents], dim=1)
    sequences = [
        TTTSequence(document.states, embeddings, first)
        for document, embeddings, first in zip(row.documents, embedded, firsts, strict=True)
    ]
    last = torch.cat([document.last[first:] for document, first in zip(row.documents, firsts, strict=True)])

    def step() -> float:
        with torch.no_grad():
            logits = restricted.logits(last)
            probabilities = logits.softmax(-1)
            full = (logits - logits.logsumexp(-1, keepdim=True)).exp()
        targets = TTTTargets(probabilities, full, head.target_ids(logits.argmax(-1)), counted)
        loss, _ = ttt_loss(head, sequences, targets, DECAY)
        take_step(loss, head, optimiser)
        return float(loss.detach())

    return step


def compare_steps(
    target: Target, sequences: Sequence[tuple[list[int], int]], name: str, goal: float, rounds: int
) -> None:
    """Report tokens of the row per second, ours and as a ratio; the goal is that of speculators."""
    row = make_row(target, sequences)
    vocabulary = DraftVocabulary(torch.arange(DRAFT_VOCABULARY), 1.0)
    config = head_config(target, DraftConfig(vocabulary=DRAFT_VOCABULARY), LAYERS, 0, "benchmark", vocabulary)
    head = new_head(config, vocabulary, target, "target")
    ours = our_step(target, head, row)
    for peer, build in PEERS.items():
        mine, theirs = alternate(ours, build(target, head, row, STEPS, DECAY), rounds)
        report(f"training step, {name}", theirs / mine, "ratio", peer, goal if build is speculators_step else 1.0)
        report(f"training step, {name}", row.slots / mine, "tokens/s", f"{row.slots / theirs:.0f} tokens/s", 0)


def main() -> None:
    """Compare steps on full and on real rows, then the reading of few layers with that of all."""
    options = arguments(__doc__)
    target = embedded_target(options.target)
    rounds = 3 if options.quick else 7
    ids = torch.randint(100, target.vocabulary, (ROW + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    compare_steps(target, [(ids, 0)], "every position counted", 1.0, rounds)

    split = SplitConfig(count=16 if options.quick else 48, seed=2, max_new_tokens=64)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        corpus = generate_responses(target, generate_prompts(split.count, split.seed), split, 48, work / "shards")
        compare_steps(target, _fill(corpus), "real prompts and answers", 1.3, rounds)
        manifest = work / "activations" / "manifest.json"
        dump_activations(target, corpus, manifest, Origin(model=target.name, fingerprint="benchmark"), 10**6, 8)
        dump = open_dump(manifest)
        few, everything = alternate(
            lambda: [read_layer(dump.parts, layer) for layer in LAYERS],
            lambda: [read_layer(dump.parts, layer) for layer in range(dump.n_layers + 1)],
            rounds,
        )
        report(f"reading {len(LAYERS)} layers of a dump", everything / few, "ratio", f"all {dump.n_layers + 1}", 5.0)


def _fill(corpus: Any) -> list[tuple[list[int], int]]:
    """Return sequences of a corpus, in its order, that together come nearest below a row's length."""
    chosen: list[tuple[list[int], int]] = []
    room = ROW
    for tokens, start in zip(corpus["input_ids"], corpus["response_start"], strict=True):
        if len(tokens) - 1 <= room and len(tokens) > start:
            chosen.append(([int(token) for token in tokens], int(start)))
            room -= len(tokens) - 1
    return chosen


if __name__ == "__main__":
    main()
