"""Compute logits of heads with SpecForge's draft model; runs in its own environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig


def build(head: dict, weights: dict[str, Tensor], embeddings: Tensor) -> LlamaForCausalLMEagle3:
    """Return the package's model with a head's weights."""
    config = LlamaConfig(
        vocab_size=head["vocabulary"],
        hidden_size=head["width"],
        intermediate_size=head["mlp_width"],
        num_hidden_layers=1,
        num_attention_heads=head["heads"],
        num_key_value_heads=head["kv_heads"],
        head_dim=head["head_dim"],
        rms_norm_eps=head["rms_norm_eps"],
        hidden_act=head["activation"],
        max_position_embeddings=head["max_positions"],
        rope_parameters=head["rope_parameters"],
        pretraining_tp=1,
        draft_vocab_size=head["draft_vocabulary"],
        fc_norm=head["fc_norm"],
        norm_output=True,  # here: the logits are of the normed output; what is fed back never is
    )
    model = LlamaForCausalLMEagle3(config, attention_backend="sdpa")
    model.load_state_dict(weights | {"embed_tokens.weight": embeddings}, strict=True)
    return model.eval()


def load_export(folder: Path, embeddings: Tensor) -> LlamaForCausalLMEagle3:
    """Return the package's model of a folder in the layout that it shares with SGLang.

    Not by its `from_pretrained`, which leaves the rotary embedding's buffers unset.
    """
    config = AutoDraftModelConfig.from_file(str(folder / "config.json"))
    model = AutoDraftModel.from_config(config, attention_backend="sdpa")
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict(weights | {"embed_tokens.weight": embeddings}, strict=True)
    return model.eval()


@torch.no_grad()
def answer(folder: Path) -> dict[str, Tensor]:
    """Return logits of the first document by step."""
    case = json.loads((folder / "case.json").read_text())
    row = load_file(folder / "row.safetensors")
    head = json.loads((folder / "config.json").read_text())
    exported = folder / "export"
    if exported.exists():
        model = load_export(exported, row["embeddings"])
    else:
        model = build(head, load_file(folder / "model.safetensors"), row["embeddings"])
    length = case["lengths"][0]
    following = row["tokens"][None, 1 : length + 1]
    hidden = model.project_hidden_states(row["states"][None, :length])
    mask = model.prepare_decoder_attention_mask(
        attention_mask=torch.ones(1, length, dtype=torch.bool),
        hidden_states=hidden,
        batch_size=1,
        seq_length=length,
        past_key_values_length=0,
    )
    found, cache = {}, [[], []]
    for step in range(case["steps"]):
        ids = F.pad(following[:, step:], (0, step))
        positions = torch.arange(length)[None]
        hidden = model.backbone(model.embed_input_ids(ids), hidden, cache, mask, positions)
        found[f"logits.{step}"] = model.compute_logits(hidden)[0].contiguous()
    return found


if __name__ == "__main__":
    for case_file in sorted(Path(sys.argv[1]).glob("*/case.json")):
        save_file(answer(case_file.parent), case_file.parent / "answer.safetensors")
