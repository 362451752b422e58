"""Sizes and first weights of a draft head, taken from its target where the two match."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speclayers.config import DraftConfig
from speclayers.drafting.head import Eagle3Head, HeadConfig
from speclayers.drafting.vocabulary import DraftVocabulary, vocabulary_hash
from speclayers.errors import UserError
from speclayers.targets.target import Target

RANDOM_STD = 0.02
FC_NOISE = 0.05
"""Size of fc's noise against its identity block, as a share of the norm it adds to a state of equal norm."""

logger = logging.getLogger(__name__)


def head_config(
    target: Target, draft: DraftConfig, layers: Sequence[int], seed: int, fingerprint: str, vocabulary: DraftVocabulary
) -> HeadConfig:
    """Return the sizes of a head for a target.

    Args:
        target: The model it drafts for; Llama-like or not, its config gives the sizes.
        draft: Settings.
        layers: Hidden-state indices it reads.
        seed: Seed of weights and order.
        fingerprint: Fingerprint of the training's settings and code.
        vocabulary: Its draft vocabulary.

    Raises:
        UserError: A layer does not exist, or the key-value heads do not divide the heads.
    """
    outside = [layer for layer in layers if not 0 <= layer <= target.n_layers]
    if outside:
        raise UserError(f"layer {outside[0]}: {target.name} has layers 0 to {target.n_layers}")
    config = target.text_config
    heads = config.num_attention_heads
    kv_heads = draft.kv_heads or _first(config, ("num_key_value_heads",), heads)
    if heads % kv_heads:
        raise UserError(f"draft.kv_heads: {kv_heads} does not divide the {heads} attention heads of {target.name}")
    head_dim = _first(config, ("head_dim",), target.width // heads)
    if head_dim % 2:
        raise UserError(f"{target.name}: attention heads are {head_dim} wide; rotary embeddings need an even width")
    return HeadConfig(
        layers=tuple(sorted(layers)),
        width=target.width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=_first(config, ("intermediate_size",), 4 * target.width),
        vocabulary=target.vocabulary,
        draft_vocabulary=len(vocabulary.ids),
        rope_parameters=rope_parameters(config),
        rms_norm_eps=_first(config, ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), 1e-6),
        activation=_first(config, ("hidden_activation", "hidden_act", "activation_function"), "silu"),
        max_positions=target.manifest.context,
        norm_before_fc=draft.norm_before_fc,
        fc_norm=draft.fc_norm,
        norm_output=draft.norm_output,
        target=target.name,
        target_hash=target.manifest.target_hash,
        template_hash=target.manifest.template_hash,
        seed=seed,
        fingerprint=fingerprint,
        vocabulary_hash=vocabulary_hash(vocabulary.ids),
        coverage=vocabulary.coverage,
    )


def _first(config: Any, names: Sequence[str], default: Any) -> Any:
    """Return the first attribute that the config has; families name and leave out different ones."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value is not None), default)


def rope_parameters(config: Any) -> dict[str, Any]:
    """Return the target's rotary embedding as one that turns whole heads, as engines expect of a draft head.

    Per-layer-type parameters (Gemma 3) give those of full attention. Partial rotation (GPT-NeoX)
    keeps only its base: scaling factors are made for its narrower part. Base 10000 when there is none (GPT-2).
    """
    parameters: dict[str, Any] = dict(getattr(config, "rope_parameters", None) or {})
    parameters = dict(parameters.get("full_attention", parameters))
    parameters.setdefault("rope_theta", 10000.0)
    parameters.setdefault("rope_type", "default")
    if parameters.pop("partial_rotary_factor", 1.0) != 1.0:
        parameters = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
    return parameters


@torch.no_grad()
def new_head(config: HeadConfig, vocabulary: DraftVocabulary, target: Target, source: str) -> Eagle3Head:
    """Return a head with its first weights, fp32.

    Every tensor draws from its own stream (seed and name), and fc's blocks count from the deepest
    layer, so heads of one seed differ in nothing but what their layers need.

    Args:
        config: Sizes.
        vocabulary: The draft vocabulary.
        target: Where weights come from.
        source: "target" or "random".
    """
    head = Eagle3Head(config, vocabulary.ids)
    taken = _target_tensors(head, target) if source == "target" else {}
    left = []
    for name, parameter in head.named_parameters():
        if name == "fc.weight":
            parameter.copy_(_fusion(config, source))
        elif name in taken:
            parameter.copy_(taken[name])
        elif parameter.dim() > 1:
            parameter.copy_(_noise(config.seed, name, tuple(parameter.shape)) * RANDOM_STD)
            left.append(name)
        else:
            left.append(f"{name} (ones)")
    logger.info("from the target: %s; random: %s", ", ".join(taken) or "nothing", ", ".join(left) or "nothing")
    head.config = config.model_copy(update={"initialised_from_target": tuple(taken)})
    return head


def _noise(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    return torch.randn(shape, generator=generator)


def _fusion(config: HeadConfig, source: str) -> Tensor:
    width, depth = config.width, len(config.layers)
    blocks = [_noise(config.seed, f"fc.{below}-below-deepest", (width, width)) for below in range(depth)]
    if source == "random":
        return torch.cat(blocks[::-1], dim=1) * RANDOM_STD
    blocks = [block * (FC_NOISE / width**0.5) for block in blocks]
    blocks[0] += torch.eye(width)  # the deepest layer passes through, as the last block's weights expect
    return torch.cat(blocks[::-1], dim=1)


def _target_tensors(head: Eagle3Head, target: Target) -> dict[str, Tensor]:
    """Return the target's weights that fit, by the head's names: the last block, but for the embedding's half."""
    anatomy = target.anatomy
    first, last = anatomy.blocks[0], anatomy.blocks[-1]
    # Where sub-layers' outputs are normed (Gemma 2 and 3, OLMo 2), post_attention_layernorm is another thing, and
    # o_proj and down_proj mean nothing without that norm.
    output_norms = _submodule(last, "post_feedforward_layernorm") is not None
    before_mlp = "pre_feedforward_layernorm" if output_norms else "post_attention_layernorm"
    lm_head = _weight(anatomy.lm_head, "")
    found: dict[str, Tensor | None] = {
        **_attention(head, first, last),
        "midlayer.input_layernorm.weight": _norm_scale(_submodule(first, "input_layernorm")),
        "midlayer.hidden_norm.weight": _norm_scale(_submodule(last, "input_layernorm")),
        "midlayer.post_attention_layernorm.weight": _norm_scale(_submodule(last, before_mlp)),
        "norm.weight": _norm_scale(anatomy.final_norm),
        "lm_head.weight": None if lm_head is None else lm_head[head.draft_ids.to(lm_head.device)],
    }
    copied = ["mlp.gate_proj", "mlp.up_proj"] + ([] if output_norms else ["mlp.down_proj", "self_attn.o_proj"])
    found |= {f"midlayer.{name}.weight": _weight(last, name) for name in copied}
    shapes = {name: parameter.shape for name, parameter in head.named_parameters()}
    return {
        name: tensor.float().cpu()
        for name, tensor in found.items()
        if tensor is not None and tensor.shape == shapes[name]
    }


def _attention(head: Eagle3Head, first: nn.Module, last: nn.Module) -> dict[str, Tensor | None]:
    """Return the input projections: hidden half from the last block, embedding half of k and v from the first."""
    heads, kv_heads, head_dim = head.config.heads, head.config.kv_heads, head.config.head_dim
    query = _projection(last, "q", heads, head_dim)
    found: dict[str, Tensor | None] = {}
    if query is not None:
        found["q_proj"] = torch.cat((torch.zeros_like(query), query), dim=1)
    for letter in ("k", "v"):
        embedding, hidden = (_projection(block, letter, kv_heads, head_dim) for block in (first, last))
        if embedding is not None and hidden is not None:
            found[f"{letter}_proj"] = torch.cat((embedding, hidden), dim=1)
    return {f"midlayer.self_attn.{name}.weight": tensor for name, tensor in found.items()}


def _projection(block: nn.Module, letter: str, heads: int, head_dim: int) -> Tensor | None:
    """Return a block's q, k or v projection (heads·head_dim, width), each of its heads repeated to give `heads`."""
    weight = _weight(block, f"self_attn.{letter}_proj")
    if weight is None or weight.shape[0] % head_dim or heads % (weight.shape[0] // head_dim):
        return None
    by_head = weight.float().cpu().view(-1, head_dim, weight.shape[1])
    norm = _submodule(block, f"self_attn.{letter}_norm")
    if norm is not None:  # Qwen 3, Gemma 3: the head has no such norm, so its expected effect goes into the weights
        scale, before = _norm_scale(norm), _norm_scale(_submodule(block, "input_layernorm"))
        if scale is None or before is None or scale.shape != (head_dim,):
            return None
        size = (by_head * before.cpu()).square().sum(dim=2).mean(dim=1).sqrt()  # of unit-RMS, uncorrelated inputs
        by_head = by_head / size[:, None, None] * scale.cpu()[:, None]
    return by_head.repeat_interleave(heads // len(by_head), dim=0).flatten(0, 1)


def _submodule(block: nn.Module, name: str) -> nn.Module | None:
    return dict(block.named_modules()).get(name)


def _weight(block: nn.Module, name: str) -> Tensor | None:
    weight = getattr(_submodule(block, name), "weight", None)
    return weight if isinstance(weight, Tensor) else None


def _norm_scale(norm: nn.Module | None) -> Tensor | None:
    """Return the factor an RMS norm multiplies with, fp32; None for other norms.

    Found by trying it, since Gemma stores the factor less one, and LayerNorm subtracts the mean.
    """
    stored = getattr(norm, "weight", None)
    if norm is None or not isinstance(stored, Tensor):
        return None
    weight = stored.float()
    probe = torch.linspace(1, 2, len(weight), device=weight.device)
    scaled = norm(probe.to(stored.dtype)).float()
    for candidate in (weight, 1 + weight):
        if torch.allclose(scaled, probe / probe.square().mean().sqrt() * candidate, rtol=2e-2, atol=1e-4):
            return candidate
    return None
