"""Draft heads with random weights."""

import torch

from speclayers.drafting.head import Eagle3Head, HeadConfig
from speclayers.drafting.medusa_heads import MedusaConfig, MedusaHeads
from speclayers.drafting.vocabulary import vocabulary_hash
from speclayers.targets.target import Target


def make_head(target: Target, layers: tuple[int, ...] = (1, 3, 5), draft_vocabulary: int = 40, seed: int = 0):
    """Return a head of one quarter of the target's width per attention head, drafting every other low token."""
    draft_ids = torch.arange(draft_vocabulary) * (target.vocabulary // draft_vocabulary)
    config = HeadConfig(
        layers=layers,
        width=target.width,
        heads=4,
        kv_heads=2,
        head_dim=target.width // 4,
        mlp_width=2 * target.width,
        vocabulary=target.vocabulary,
        draft_vocabulary=draft_vocabulary,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-6,
        activation="silu",
        max_positions=512,
        target=target.name,
        target_hash=target.manifest.target_hash,
        template_hash=target.manifest.template_hash,
        seed=seed,
        fingerprint="test",
        vocabulary_hash=vocabulary_hash(draft_ids),
        coverage=1.0,
    )
    head = Eagle3Head(config, draft_ids)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = 1.0 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return head.requires_grad_(False).eval()


def make_medusa(target: Target, heads: int = 4, draft_vocabulary: int = 40, seed: int = 0) -> MedusaHeads:
    """Return Medusa heads of small random blocks and falling accuracies."""
    draft_ids = torch.arange(draft_vocabulary) * (target.vocabulary // draft_vocabulary)
    config = MedusaConfig(
        heads=heads,
        draft_vocabulary=draft_vocabulary,
        vocabulary_hash=vocabulary_hash(draft_ids),
        coverage=1.0,
        target=target.name,
        target_hash=target.manifest.target_hash,
        template_hash=target.manifest.template_hash,
        seed=seed,
        fingerprint="test",
    )
    made = MedusaHeads(config, draft_ids, target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * target.width**-0.5)
        made.accuracies.copy_(
            0.5 ** torch.arange(1, heads + 1)[:, None] * 0.6 ** torch.arange(made.accuracies.shape[1])
        )
    return made.requires_grad_(False).eval()
