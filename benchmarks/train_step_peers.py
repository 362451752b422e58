"""The optimiser step of other packages' EAGLE-3 training, on the weights and the row that ours takes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from speclayers.drafting.head import Eagle3Head
from speclayers.targets.target import Target

ROOT = Path(__file__).resolve().parents[1]


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


def take_step(loss: Tensor, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Go one step down the gradient, clipped."""
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def import_oracle(package: str) -> ModuleType:
    """Return the test suite's bridge to a package, whose pinned environment is installed where it is missing."""
    sys.path.append(str(ROOT))
    environment = importlib.import_module("tests.oracles.environment")
    sys.path.append(str(environment.oracle_environment(package)))
    return importlib.import_module(f"tests.oracles.{package}_oracle")


def trainable(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return AdamW over what a package trains."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)


def weights_of(head: Eagle3Head) -> dict[str, Tensor]:
    """Copy a head's weights."""
    return {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}


def speculators_step(target: Target, head: Eagle3Head, row: Row, steps: int, decay: float) -> Callable[[], float]:
    """Return a function that takes one step of the package's model with the same weights."""
    oracle = import_oracle("speculators")
    draft_ids = head.draft_ids
    of_target = {
        "embeddings": target.anatomy.embedding.weight.detach(),
        "norm": target.anatomy.final_norm.weight.detach(),
        "lm_head": target.anatomy.lm_head.weight.detach()[draft_ids],
    }
    model: Any = oracle.build(head.config.model_dump(mode="json"), weights_of(head), of_target, steps)
    optimiser = trainable(model)
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
        _, loss, _ = model(**inputs, ttt_steps=steps, ttt_step_loss_decay=decay, loss_config=loss_config)
        take_step(loss, model, optimiser)
        return float(loss.detach())

    return step


def specforge_step(target: Target, head: Eagle3Head, row: Row, steps: int, decay: float) -> Callable[[], float]:
    """Return a function that takes one step of SpecForge's model with the same weights.

    Documents are a batch, padded to the longest, as the package trains. Its loss is a Triton kernel, which no CPU
    runs: the formula that it keeps beside the kernel as a reference takes its place. Its teacher reads the whole
    vocabulary, for an acceptance rate that it logs at every step.
    """
    oracle = import_oracle("specforge")
    torch.compile(take_step)  # lets torch look for Triton before there seems to be one
    missing = {name: _NoKernels(name) for name in ("triton", "triton.language") if name not in sys.modules}
    sys.modules.update(missing)
    package = importlib.import_module("specforge.algorithms.eagle3.model")
    for name in missing:
        del sys.modules[name]
    package.LogSoftmaxLoss = _ReferenceLoss
    draft: Any = oracle.build(
        head.config.model_dump(mode="json"), weights_of(head), target.anatomy.embedding.weight.detach()
    )
    draft.embed_tokens.requires_grad_(False)
    online = package.OnlineEagle3Model(draft.train(), length=steps, attention_backend="sdpa")
    optimiser = trainable(draft)
    lengths = torch.tensor([len(document.states) for document in row.documents])
    inputs = {
        "input_ids": _batch([document.ids[1:] for document in row.documents]),
        "attention_mask": torch.arange(int(lengths.max())) < lengths[:, None],
        "loss_mask": _batch([torch.arange(1, len(d.ids)) >= d.response_start for d in row.documents])[..., None].long(),
        "hidden_states": _batch([document.states for document in row.documents]),
        "target": None,
        "target_hidden_for_compact": target.anatomy.final_norm(_batch([d.last for d in row.documents])).detach(),
        "target_head_weight": target.anatomy.lm_head.weight.detach(),
    }

    def step() -> float:
        losses = online(**inputs)[0]
        loss = torch.stack([decay**number * loss for number, loss in enumerate(losses)]).sum()
        take_step(loss, draft, optimiser)
        return float(loss.detach())

    return step


def _batch(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)


class _NoKernels(ModuleType):
    """Stands in for Triton where it is imported only."""

    constexpr = object

    @staticmethod
    def jit(kernel: object) -> object:
        """Leave a kernel as it is; none is run."""
        return kernel


class _ReferenceLoss:
    """The package's cross-entropy by its reference formula."""

    @staticmethod
    def apply(logits: Tensor, probabilities: Tensor, mask: Tensor) -> Tensor:
        """Return the mean over all positions of the masked cross-entropy."""
        return -(mask * probabilities * logits.float().log_softmax(-1)).sum(-1).mean()
