"""Heads to export, their targets, and folders of heads as other software writes them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from speclayers.drafting.head import Eagle3Head
from speclayers.export.engine import ServedTarget, served_target
from speclayers.export.folder import export_head
from speclayers.export.preflight import Fit
from speclayers.specs import ExportSpec
from speclayers.targets.target import Target
from tests.drafts import make_head

LAYERS = {1: (3,), 2: (2, 4), 3: (1, 3, 5), 4: (1, 2, 4, 5)}
"""Layers of a head by their number, of a target of six blocks; every engine captures them."""

LLAMA3: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}

SPEC = ExportSpec(dtype="float32", speculative_tokens=3)


def folder_of(target: Target) -> Path:
    """The folder that a tiny target was loaded from."""
    return Path(target.model.config._name_or_path)


def served(target: Target, **changes: Any) -> ServedTarget:
    return served_target(folder_of(target), target.manifest)._replace(**changes)


def drawn_head(target: Target, layers, seed: int = 0, residual: bool = False, **settings: Any) -> Eagle3Head:
    """A head all of whose weights, norms included, are drawn at random."""
    head = make_head(target, layers, **settings)
    if residual:  # such heads are only taken over, never trained here
        head = Eagle3Head(head.config.model_copy(update={"norm_before_residual": True}), head.draft_ids)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
            parameter.copy_(0.1 + scale * torch.rand(parameter.shape, generator=generator))
    return head.requires_grad_(False)


def exported(engine: str, head: Eagle3Head, target: Target, folder: Path) -> Fit:
    return export_head(engine, head.config, head.state_dict(), served(target), folder, SPEC)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of a folder's config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_tensors(folder: Path, change) -> None:
    """Change a folder's tensors by a function of them all."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in change(tensors).items()}, folder / "model.safetensors")
