"""What an oracle computes: a head, a row of documents, and afterwards the oracle's logits, loss and gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from speclayers.drafting.head import Eagle3Head, save_head
from speclayers.drafting.ttt import TTTSequence, TTTTargets, ttt_outputs

STEPS = 4
DECAY = 0.8


class Case(NamedTuple):
    """One head and what it reads.

    Args:
        head: With weights that are all away from their defaults.
        lengths: Slots of each document.
        tensors: `states` (slots, k·width) of all documents one after the other, `tokens` (slots + documents,),
            `embeddings` (vocabulary, width), and the target's `last` (slots, width), `norm` (width,) and
            `lm_head` (draft_vocabulary, width).
    """

    head: Eagle3Head
    lengths: tuple[int, ...]
    tensors: dict[str, Tensor]

    def sequences(self) -> list[TTTSequence]:
        """Return the documents as the head reads them."""
        embeddings = self.tensors["embeddings"][self.tensors["tokens"]]
        documents = zip(
            self.tensors["states"].split(list(self.lengths)),
            embeddings.split([length + 1 for length in self.lengths]),
            strict=True,
        )
        return [TTTSequence(states, own, 0) for states, own in documents]

    def targets(self, steps: int) -> TTTTargets:
        """Return what the head should predict on the first document, every slot counted."""
        length = self.lengths[0]
        last = self.tensors["last"][:length]
        normed = F.rms_norm(last, last.shape[-1:], self.tensors["norm"], self.head.config.rms_norm_eps)
        restricted = (normed @ self.tensors["lm_head"].T).softmax(-1)
        slots = torch.arange(length)
        counted = torch.stack([slots + step < length for step in range(steps)])
        return TTTTargets(restricted, restricted, self.head.target_ids(restricted.argmax(-1)), counted)


def make_case(head: Eagle3Head, lengths: tuple[int, ...] = (17, 9), seed: int = 0) -> Case:
    """Return a case of random inputs; all weights of the head are drawn anew."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    config = head.config
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 1:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            else:
                parameter.copy_(normal(*parameter.shape, scale=parameter.shape[1] ** -0.5))
    slots = sum(lengths)
    tensors = {
        "states": normal(slots, len(config.layers) * config.width, scale=3.0),
        "tokens": torch.randint(config.vocabulary, (slots + len(lengths),), generator=generator),
        "embeddings": normal(config.vocabulary, config.width),
        "last": normal(slots, config.width),
        "norm": 0.5 + torch.rand(config.width, generator=generator),
        "lm_head": normal(config.draft_vocabulary, config.width, scale=0.3),
    }
    return Case(head, lengths, tensors)


def write_case(folder: Path, case: Case) -> None:
    """Write a case where an oracle finds it."""
    save_head(folder, case.head)
    save_file({name: tensor.contiguous() for name, tensor in case.tensors.items()}, folder / "row.safetensors")
    (folder / "case.json").write_text(json.dumps({"lengths": case.lengths, "steps": STEPS, "decay": DECAY}))


def read_answer(folder: Path) -> dict[str, Tensor]:
    """Read what an oracle computed."""
    answer: dict[str, Tensor] = load_file(folder / "answer.safetensors")
    return answer


@torch.no_grad()
def check_logits(case: Case, theirs: dict[str, Tensor], documents: int) -> None:
    """Compare an oracle's logits of the first documents with the head's, at every step."""
    lengths = case.lengths[:documents]
    outputs = ttt_outputs(case.head, case.sequences()[:documents], STEPS)
    for step, output in enumerate(outputs):
        # behind a document's last token every package feeds what it likes; such slots never count
        real = torch.cat([torch.arange(length) + step < length for length in lengths])
        ours = case.head.logits(output)
        torch.testing.assert_close(ours[real], theirs[f"logits.{step}"][: len(real)][real], rtol=1e-4, atol=1e-4)
    assert float(ours.std()) > 0.1
