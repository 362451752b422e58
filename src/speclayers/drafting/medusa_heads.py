"""Medusa's heads: residual blocks on the target's last state, before its own LM head (arXiv 2401.10774)."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from speclayers.config import Section
from speclayers.drafting.tensor_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    fill,
    read_tensors,
    refuse_other_target,
    write_tensors,
)
from speclayers.drafting.vocabulary import DraftIds, restricted_target, stored_draft_ids
from speclayers.errors import UserError
from speclayers.files import read_json, write_json
from speclayers.targets.target import Target

RANKS = 10
"""Tokens of each head that may become candidates, as in the public code."""


class MedusaConfig(Section):
    """What the heads are, and the target and settings that they were trained with."""

    heads: int = Field(ge=1, description="Heads; head i drafts the token i + 2 places behind the state that it reads.")
    draft_vocabulary: int = Field(description="Tokens that they can draft.")
    vocabulary_hash: str = Field(description="Hash of the draft vocabulary's target ids.")
    coverage: float = Field(description="Share of training response tokens inside the draft vocabulary.")
    target: str = Field(description="Name of the target.")
    target_hash: str = Field(description="Hash of the target's files.")
    template_hash: str = Field(description="Hash of the chat template that the responses were rendered with.")
    seed: int = Field(description="Seed of the order of training.")
    fingerprint: str = Field(description="Fingerprint of the training's settings and code.")


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, width: int) -> None:
        """Start as the identity, so that every head begins as the target's LM head."""
        super().__init__()
        self.linear = nn.Linear(width, width, device="meta").to_empty(device="cpu")  # no global generator
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, state: Tensor) -> Tensor:
        """Map (…, width) to (…, width)."""
        mapped: Tensor = state + nn.functional.silu(self.linear(state))
        return mapped


class MedusaHeads(DraftIds):
    """A residual block for each head; all share the target's LM head, which is not theirs and stays as it is.

    Args:
        config: Sizes.
        draft_ids: (draft_vocabulary,) target ids of the draft vocabulary, ascending.
        target: The model whose final norm and LM head they use.
    """

    accuracies: Tensor

    def __init__(self, config: MedusaConfig, draft_ids: Tensor, target: Target) -> None:
        """Make the blocks; how accurate they are is not known yet."""
        super().__init__(draft_ids, target.vocabulary)
        self.config = config
        self.blocks = nn.ModuleList(ResidualBlock(target.width) for _ in range(config.heads))
        ranks = min(RANKS, config.draft_vocabulary)
        self.register_buffer("accuracies", torch.full((config.heads, ranks), float("nan")))
        self._target = restricted_target(target, draft_ids)

    def forward(self, states: Tensor) -> list[Tensor]:
        """Return each head's output (…, width), which `logits` reads, of layer N's states (…, width)."""
        norm = self._target.anatomy.final_norm
        normed = norm(states.to(next(norm.parameters()))).to(next(self.blocks.parameters()))
        return [block(normed) for block in self.blocks]

    def logits(self, output: Tensor) -> Tensor:
        """Return logits over the draft vocabulary (…, draft_vocabulary) of outputs (…, width)."""
        lm_head = next(self._target.anatomy.lm_head.parameters())
        return self._target.logits_of_normed(output.to(lm_head)).to(output.device)


def save_medusa(folder: Path, heads: MedusaHeads) -> None:
    """Write model.safetensors and config.json; each appears whole or not at all.

    Raises:
        UserError: A file cannot be written.
    """
    write_tensors(folder / WEIGHTS_FILE, heads.state_dict(), {"format": "pt"})
    write_json(folder / CONFIG_FILE, heads.config.model_dump(mode="json"))


def load_medusa(folder: Path, target: Target) -> MedusaHeads:
    """Read heads for their target, onto its device and in its precision, without gradients.

    Raises:
        UserError: Files are missing or broken, a tensor is missing or has another shape than the config says, or the
            heads were trained for another target.
    """
    path, weights = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    try:
        config = MedusaConfig.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: is no config of Medusa heads: {where}: {first['msg']}") from None
    refuse_other_target(folder, config.target, config.target_hash, target)
    tensors = read_tensors(weights)
    size, vocabulary = config.draft_vocabulary, target.vocabulary
    draft_ids = stored_draft_ids(tensors, size, vocabulary, config.vocabulary_hash, weights)
    heads = MedusaHeads(config, draft_ids, target)
    fill(heads, tensors, weights)
    heads.requires_grad_(False).eval().to(device=target.device, dtype=target.dtype)
    heads.accuracies = tensors["accuracies"]  # `to` has rounded them, too, and the tree is built from them
    return heads
