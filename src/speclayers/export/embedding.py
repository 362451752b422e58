"""The target's embedding, which some software stores with a head."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

EMBEDDING = "embed_tokens.weight"
"""How its name ends, in a target's folder and in a head's."""


def target_embedding(folder: Path) -> Tensor | None:
    """Read the embedding of a fetched model without loading the model; None where it goes by another name.

    Args:
        folder: Folder of the fetched model.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                if name.endswith(EMBEDDING):
                    found: Tensor = opened.get_tensor(name)
                    return found
    return None
