"""An optimiser step of training-time test, beside the speculators package on the same row; reading dumped layers.

Sizes are SmolLM2-135M's: width 576, draft vocabulary 8192, three layers, TTT 3, about 512 tokens packed in a row.
A step is the target's distribution from its last states, forward, backward, clipping and AdamW. The
package keeps its LM head frozen; this project trains its own, so it computes and applies one gradient more. Each takes
its default loss, soft cross-entropy here and KL there, whose gradients are equal.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from figures import alternate, arguments, embedded_target, report
from torch import Tensor

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
ROW = 512


class Document(NamedTuple):
    """A sequence of a row: its tokens, where its response starts, and the target's states at its slots."""

    ids: Tensor
    response_start: int
    states: Tensor
    last: Tensor


class Row(NamedTuple):
    """What both learn from; states are random, since no step's time depends on their values."""

    documents: list[Document]

    @property
    def slots(self) -> int:
        """Slots of all documents."""
        return sum(len(document.states) for document in self.documents)


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
        _apply(loss, head, optimiser)
        return float(loss.detach())

    return step


def speculators_step(target: Target, head: Eagle3Head, row: Row) -> Callable[[], float]:
    """Return a function that takes one step of the package's model with the same weights."""
    sys.path.append(str(ROOT))
    environment = importlib.import_module("tests.oracles.environment")
    sys.path.append(str(environment.oracle_environment("speculators")))
    oracle = importlib.import_module("tests.oracles.speculators_oracle")
    draft_ids = head.draft_ids
    weights = {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}
    of_target = {
        "embeddings": target.anatomy.embedding.weight.detach(),
        "norm": target.anatomy.final_norm.weight.detach(),
        "lm_head": target.anatomy.lm_head.weight.detach()[draft_ids],
    }
    model: Any = oracle.build(head.config.model_dump(mode="json"), weights, of_target, STEPS)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    loss_config = oracle.resolve_loss_config("kl_div", "eager")
    # its slot p counts when token p + 1, the one it embeds, is a response token
    masks = [torch.arange(1, len(document.ids)) >= document.response_start for document in row.documents]
    lengths = torch.tensor([len(document.states) for document in row.documents])
    inputs = {
        "hidden_states": torch.cat([document.states for document in row.documents])[None],
        "input_ids": torch.cat([document.ids[1:] for document in row.documents])[None],
        "document_ids": torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None],
        "loss_mask": torch.cat(masks)[None],
        "verifier_last_hidden_states": torch.cat([document.last for document in row.documents])[None],
    }

    def step() -> float:
        _, loss, _ = model(**inputs, ttt_steps=STEPS, ttt_step_loss_decay=DECAY, loss_config=loss_config)
        _apply(loss, model, optimiser)
        return float(loss.detach())

    return step


def _apply(loss: Tensor, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def compare_steps(
    target: Target, sequences: Sequence[tuple[list[int], int]], name: str, goal: float, rounds: int
) -> None:
    """Report tokens of the row per second, ours and as a ratio."""
    row = make_row(target, sequences)
    vocabulary = DraftVocabulary(torch.arange(DRAFT_VOCABULARY), 1.0)
    config = head_config(target, DraftConfig(vocabulary=DRAFT_VOCABULARY), LAYERS, 0, "benchmark", vocabulary)
    head = new_head(config, vocabulary, target, "target")
    ours, theirs = alternate(our_step(target, head, row), speculators_step(target, head, row), rounds)
    report(f"training step, {name}", theirs / ours, "ratio", "speculators 0.9.0, LM head frozen", goal)
    report(f"training step, {name}", row.slots / ours, "tokens/s", f"{row.slots / theirs:.0f} tokens/s", 0)


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
