"""A loaded target model and the few things every stage asks of it."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from speclayers.config import Runtime
from speclayers.errors import UserError
from speclayers.targets.anatomy import Anatomy, find_anatomy
from speclayers.targets.manifest import Manifest, read_manifest

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Target:
    """A model under study, in evaluation mode and without gradients.

    Args:
        name: Name in the registry.
        model: The causal language model.
        tokenizer: Its tokenizer.
        manifest: What it is.
        anatomy: Its parts.
        runtime: How it runs.
    """

    name: str
    model: Any
    tokenizer: Any
    manifest: Manifest
    anatomy: Anatomy
    runtime: Runtime

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks, N."""
        return len(self.anatomy.blocks)

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.manifest.width

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return self.manifest.vocabulary

    @property
    def dtype(self) -> torch.dtype:
        """Precision of states and weights."""
        return DTYPES[self.runtime.dtype]

    @property
    def device(self) -> torch.device:
        """Device that token ids are sent to: the embedding's."""
        return next(self.anatomy.embedding.parameters()).device

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.manifest.stop_ids)

    @property
    def text_config(self) -> Any:
        """The transformers config of the language model."""
        return self.model.config.get_text_config()

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return token embeddings, scaled as the family does, without position embeddings.

        Args:
            ids: Token ids (…).

        Returns:
            Embeddings (…, width).
        """
        # Gemma scales inside its embedding module, Granite in its body.
        embedded: torch.Tensor = self.anatomy.embedding(ids.to(self.device))
        scale = getattr(self.text_config, "embedding_multiplier", None)
        return embedded if scale is None else embedded * scale

    def logits(self, last_state: torch.Tensor) -> torch.Tensor:
        """Return the next-token logits of layer N's states.

        Args:
            last_state: States (…, width) as they enter the final norm.

        Returns:
            Logits (…, vocabulary).
        """
        return self.logits_of_normed(self.anatomy.final_norm(last_state))

    def logits_of_normed(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the next-token logits (…, vocabulary) of states (…, width) behind the final norm."""
        logits: torch.Tensor = self.anatomy.lm_head(normed)
        config = self.text_config
        if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
            logits = logits / divisor
        if (factor := getattr(config, "logit_scale", None)) is not None:  # Cohere
            logits = logits * factor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma 2
            logits = torch.tanh(logits / cap) * cap
        return logits


def quiet_log() -> None:
    """Keep transformers' progress bars off anything but a terminal, where they would fill a log."""
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()


def load_target(folder: Path, name: str, runtime: Runtime) -> Target:
    """Load a fetched model.

    Args:
        folder: Folder with manifest, config, safetensors and tokenizer.
        name: Name in the registry.
        runtime: Precision and device.

    Raises:
        UserError: The manifest is missing, the device is absent, weights are missing, or the model's
            structure is not understood.
    """
    quiet_log()
    manifest = read_manifest(folder)
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise UserError(f"models.{name}.device: is 'cuda', but no CUDA device is available; expected 'cpu'")
    model = _load_model(folder, runtime)
    target = Target(
        name=name,
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=runtime.trust_remote_code
        ),
        manifest=manifest,
        anatomy=find_anatomy(model),
        runtime=runtime,
    )
    _check_logits(target)
    return target


def _load_model(folder: Path, runtime: Runtime) -> Any:
    # Attention stays transformers' choice: sdpa, or eager for families whose softcapping sdpa lacks (Gemma 2).
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=DTYPES[runtime.dtype],
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # told below by name; transformers would raise without one
        device_map="auto" if runtime.device == "auto" else None,
        local_files_only=True,
        trust_remote_code=runtime.trust_remote_code,
    )
    model, report = loaded
    if report["missing_keys"]:  # transformers fills them with random numbers
        raise UserError(f"{folder}: its weights lack {min(report['missing_keys'])}; expected a complete model")
    if report["mismatched_keys"]:
        weight, found, expected = min(report["mismatched_keys"])
        raise UserError(f"{folder}: {weight} is {tuple(found)}; its config.json asks for {tuple(expected)}")
    if report["unexpected_keys"]:
        unused = sorted(report["unexpected_keys"])
        logger.warning(
            "warning: %s: the model has no place for %d of its weights, such as %s; does its config.json fit?",
            folder,
            len(unused),
            unused[0],
        )
    if runtime.device != "auto":
        model = model.to(runtime.device)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def _check_logits(target: Target) -> None:
    """Refuse a family whose logits are made in a way that `Target.logits` does not know."""
    states: list[torch.Tensor] = []
    handle = target.anatomy.final_norm.register_forward_pre_hook(lambda _module, args: states.append(args[0]))
    try:
        ids = torch.tensor([[min(target.stop_ids)] * 2], device=target.device)
        expected = target.model(ids, use_cache=False).logits.float()
    finally:
        handle.remove()
    if not bool(torch.isfinite(expected).all()):
        raise UserError(
            f"{target.name}: its logits are not finite; weights hold NaN, or are too large for {target.runtime.dtype}"
        )
    found = target.logits(states[0]).float()
    # Loose enough for bfloat16; a forgotten scale or cap is off by far more.
    if not torch.allclose(found, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max())):
        family = target.manifest.architecture
        raise UserError(f"{target.name}: {family} makes its logits in a way this version does not know")
