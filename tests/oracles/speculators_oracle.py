"""Compute logits, loss and gradients of heads with the speculators package; runs in its own environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig

LOSSES = {"kl": "kl_div", "lk": "lk_hybrid"}


def build(head: dict, weights: dict[str, Tensor], row: dict[str, Tensor], steps: int) -> Eagle3DraftModel:
    """Return the package's model with a head's weights."""
    layer = LlamaConfig(
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
    )
    # its default needs a GPU to train
    layer._attn_implementation = "sdpa"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=head["draft_vocabulary"],
        norm_before_residual=False,
        norm_before_fc=head["norm_before_fc"],
        fc_norm=head["fc_norm"],
        norm_output=head["norm_output"],
        eagle_aux_hidden_state_layer_ids=head["layers"],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=steps)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path="unused", architectures=["LlamaForCausalLM"]),
        ),
    )
    model = Eagle3DraftModel(config)
    named = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in weights.items()}
    named |= {"embed_tokens.weight": row["embeddings"], "verifier_norm.weight": row["norm"]}
    model.load_state_dict(named | {"verifier_lm_head.weight": row["lm_head"]}, strict=True)
    return model


def load_export(folder: Path) -> Eagle3DraftModel:
    """Return the package's model of a folder in its own layout, loaded as it loads any other."""
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "sdpa"
    return Eagle3DraftModel.from_pretrained(folder, config=config)


def inputs(case: dict, row: dict[str, Tensor], documents: int) -> dict[str, Tensor]:
    """Return the first documents as one packed row."""
    lengths = case["lengths"][:documents]
    tokens = row["tokens"].split([length + 1 for length in case["lengths"]])[:documents]
    slots = sum(lengths)
    return {
        "hidden_states": row["states"][None, :slots],
        "input_ids": torch.cat([own[1:] for own in tokens])[None],
        "document_ids": torch.repeat_interleave(torch.arange(documents), torch.tensor(lengths))[None],
        "loss_mask": torch.ones(1, slots, dtype=torch.bool),
        "verifier_last_hidden_states": row["last"][None, :slots],
    }


def answer(folder: Path) -> dict[str, Tensor]:
    """Return logits of the packed row by step, and by loss its value and gradient on the first document."""
    case = json.loads((folder / "case.json").read_text())
    row = load_file(folder / "row.safetensors")
    head = json.loads((folder / "config.json").read_text())
    exported = folder / "export"
    if exported.exists():
        model = load_export(exported)
    else:
        model = build(head, load_file(folder / "model.safetensors"), row, case["steps"])
    logits: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, args, output: logits.append(output.detach()[0]))
    steps = {"ttt_steps": case["steps"], "ttt_step_loss_decay": case["decay"]}
    kl = resolve_loss_config(LOSSES["kl"], "eager")
    model(**inputs(case, row, len(case["lengths"])), **steps, loss_config=kl)
    hook.remove()
    found = {f"logits.{step}": tensor.contiguous() for step, tensor in enumerate(logits)}
    for ours, theirs in LOSSES.items() if not exported.exists() else ():
        model.zero_grad()
        _, loss, _ = model(**inputs(case, row, 1), **steps, loss_config=resolve_loss_config(theirs, "eager"))
        loss.backward()
        found[f"loss.{ours}"] = loss.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient.{ours}.{name.replace('layers.0.', 'midlayer.')}"] = parameter.grad.clone()
    return found


if __name__ == "__main__":
    for case_file in sorted(Path(sys.argv[1]).glob("*/case.json")):
        save_file(answer(case_file.parent), case_file.parent / "answer.safetensors")
