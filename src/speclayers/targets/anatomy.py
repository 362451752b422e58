"""Where a decoder-only model keeps its blocks, final norm, embedding and LM head."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from speclayers.errors import UserError


class Anatomy(NamedTuple):
    """The parts of a decoder-only model that the study reads.

    Args:
        body: The module that runs the blocks.
        blocks: Its N decoder blocks.
        final_norm: The norm between the last block and the LM head; its input is layer N.
        embedding: The token embedding.
        lm_head: The map from normed states to logits.
    """

    body: nn.Module
    blocks: nn.ModuleList
    final_norm: nn.Module
    embedding: nn.Module
    lm_head: nn.Module


def find_anatomy(model: nn.Module) -> Anatomy:
    """Find the parts of a transformers model by its structure, not by its family's attribute names.

    Args:
        model: A causal language model of transformers.

    Raises:
        UserError: The model is an encoder-decoder, or a part is missing or ambiguous.
    """
    config: Any = model.config
    family = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{family}: is an encoder-decoder; only decoder-only models can be studied")
    text_config = config.get_text_config()
    body, name, blocks = _find_blocks(model, text_config.num_hidden_layers, family)
    return Anatomy(
        body=body,
        blocks=blocks,
        final_norm=_find_final_norm(body, name, family),
        embedding=_required(model, "get_input_embeddings", "token embedding", family),
        lm_head=_required(model, "get_output_embeddings", "LM head", family),
    )


def _find_blocks(model: nn.Module, n_layers: int, family: str) -> tuple[nn.Module, str, nn.ModuleList]:
    found = [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == n_layers and len({type(block) for block in child}) == 1
    ]
    if len(found) != 1:
        raise UserError(f"{family}: found {len(found)} lists of {n_layers} decoder blocks; expected one")
    return found[0]


def _find_final_norm(body: nn.Module, blocks_name: str, family: str) -> nn.Module:
    children = list(body.named_children())
    norms = [(index, child) for index, (name, child) in enumerate(children) if _is_norm(name, child)]
    if len(norms) > 1:
        # Some families also normalise the embedding (BLOOM); the final norm is declared after the blocks.
        place = [name for name, _ in children].index(blocks_name)
        norms = [(index, child) for index, child in norms if index > place]
    if len(norms) != 1:
        raise UserError(f"{family}: found {len(norms)} final norms beside the decoder blocks; expected one")
    return norms[0][1]


def _is_norm(name: str, module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() or "norm" in name.lower() or name.startswith("ln")


def _required(model: nn.Module, getter: str, part: str, family: str) -> nn.Module:
    found = getattr(model, getter)()
    if not isinstance(found, nn.Module):
        raise UserError(f"{family}: has no {part}; only causal language models can be studied")
    return found
