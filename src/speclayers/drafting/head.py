"""The EAGLE-3 draft head: fusion of target layers, one Llama-style decoder layer, LM head over the draft vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from speclayers.config import Section
from speclayers.drafting.draft_cache import DraftCache
from speclayers.drafting.tensor_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    fill,
    read_tensors,
    refuse_other_target,
    write_tensors,
)
from speclayers.drafting.vocabulary import DraftIds, stored_draft_ids
from speclayers.errors import UserError
from speclayers.files import read_json, write_json
from speclayers.targets.target import Target


class HeadConfig(Section):
    """What a head is: its layers, its sizes, and the target and settings it was trained with."""

    kind: str = Field("eagle3", description="Kind of the head.")
    layers: tuple[int, ...] = Field(min_length=1, description="Target layers it reads, ascending hidden-state indices.")
    width: int = Field(description="Width of the residual stream, the target's.")
    heads: int = Field(description="Attention heads.")
    kv_heads: int = Field(description="Key-value heads.")
    head_dim: int = Field(description="Width of an attention head.")
    mlp_width: int = Field(description="Width inside the gated MLP.")
    vocabulary: int = Field(description="Rows of the target's embedding.")
    draft_vocabulary: int = Field(description="Tokens the head can draft.")
    rope_parameters: dict[str, Any] = Field(description="The target's rotary embedding, as transformers names it.")
    rms_norm_eps: float = Field(description="Epsilon of the norms.")
    activation: str = Field(description="Activation of the MLP, as transformers names it.")
    max_positions: int = Field(description="Longest sequence, the target's.")
    norm_before_residual: bool = Field(
        False, description="The residual is the normed hidden state; in some heads trained elsewhere."
    )
    norm_before_fc: bool = Field(False, description="One norm over the concatenated states, before fc.")
    fc_norm: bool = Field(False, description="A norm for each layer's states, before fc.")
    norm_output: bool = Field(False, description="Later steps are fed the output behind the final norm.")
    target: str = Field(description="Name of the target.")
    target_hash: str = Field(description="Hash of the target's files.")
    template_hash: str = Field(description="Hash of the chat template the responses were rendered with.")
    seed: int = Field(description="Seed of weights and order.")
    fingerprint: str = Field(description="Fingerprint of the training's settings and code.")
    vocabulary_hash: str = Field(description="Hash of the draft vocabulary's target ids.")
    coverage: float | None = Field(
        description="Share of training response tokens inside the draft vocabulary; null if trained elsewhere."
    )
    initialised_from_target: tuple[str, ...] = Field((), description="Tensors that started from the target's weights.")
    started_from: str | None = Field(None, description="Head whose weights it started from; null when from scratch.")
    percent: int | None = Field(
        None, description="Share of a head's training, in per cent, that followed; null when from scratch."
    )


def _linear(inputs: int, outputs: int) -> nn.Linear:
    # Not initialised from torch's global generator; NaN shows at once when a weight was never set.
    layer = nn.Linear(inputs, outputs, bias=False, device="meta").to_empty(device="cpu")
    nn.init.constant_(layer.weight, float("nan"))
    return layer


class DraftAttention(nn.Module):
    """Grouped-query attention whose inputs are 2·width wide: embedding half, then hidden half."""

    def __init__(self, config: HeadConfig) -> None:
        """Make the projections; their weights are NaN until set."""
        super().__init__()
        self.head_dim = config.head_dim
        self.grouped = config.kv_heads != config.heads
        self.q_proj = _linear(2 * config.width, config.heads * config.head_dim)
        self.k_proj = _linear(2 * config.width, config.kv_heads * config.head_dim)
        self.v_proj = _linear(2 * config.width, config.kv_heads * config.head_dim)
        self.o_proj = _linear(config.heads * config.head_dim, config.width)

    def queries(self, inputs: Tensor) -> Tensor:
        """Return (batch, heads, t, head_dim), not yet rotated, of inputs (batch, t, 2·width)."""
        return self._split(self.q_proj(inputs))

    def keys_values(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (not yet rotated) and values, each (batch, kv_heads, t, head_dim)."""
        return self._split(self.k_proj(inputs)), self._split(self.v_proj(inputs))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention's output (batch, t, width).

        Args:
            queries: (batch, heads, t, head_dim), rotated.
            keys: (batch, kv_heads, s, head_dim), rotated.
            values: (batch, kv_heads, s, head_dim).
            mask: Additive float, broadcastable to (batch, heads, t, s); all keys are seen when not given.
        """
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=self.grouped)
        return self.output(attended)

    def output(self, attended: Tensor) -> Tensor:
        """Join the heads: (batch, heads, t, head_dim) → (batch, t, width)."""
        joined: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return joined

    def _split(self, projected: Tensor) -> Tensor:
        batch, slots, _ = projected.shape
        return projected.view(batch, slots, -1, self.head_dim).transpose(1, 2)


class DraftMLP(nn.Module):
    """Gated MLP as in Llama."""

    def __init__(self, config: HeadConfig) -> None:
        """Make the projections; their weights are NaN until set."""
        super().__init__()
        self.gate_proj = _linear(config.width, config.mlp_width)
        self.up_proj = _linear(config.width, config.mlp_width)
        self.down_proj = _linear(config.mlp_width, config.width)
        self.activation = ACT2FN[config.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (…, width) to (…, width)."""
        mapped: Tensor = self.down_proj(self.activation(self.gate_proj(hidden)) * self.up_proj(hidden))
        return mapped


class DraftLayer(nn.Module):
    """The head's one decoder layer (EAGLE-3, arXiv 2503.01840, as in its public code)."""

    def __init__(self, config: HeadConfig) -> None:
        """Make the parts; linear weights are NaN until set."""
        super().__init__()
        self.self_attn = DraftAttention(config)
        self.mlp = DraftMLP(config)
        self.input_layernorm = nn.RMSNorm(config.width, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.width, eps=config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual
        self.post_attention_layernorm = nn.RMSNorm(config.width, eps=config.rms_norm_eps)

    def attention_inputs(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        """Concatenate the normed embedding and the normed hidden state: (…, 2·width)."""
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(hidden)), dim=-1)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Add attention to the hidden state, un-normed unless `norm_before_residual`, then the MLP: (…, width)."""
        residual = (self.hidden_norm(hidden) if self.norm_before_residual else hidden) + attended
        finished: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return finished


class Eagle3Head(DraftIds):
    """The draft head; parameters are named as in the EAGLE layout.

    The weights of a new head are NaN until `initialise` or `load_head` sets them.

    Args:
        config: Sizes.
        draft_ids: (draft_vocabulary,) target ids of the draft vocabulary, ascending.
    """

    def __init__(self, config: HeadConfig, draft_ids: Tensor) -> None:
        """Make the parts and the draft vocabulary's buffers."""
        super().__init__(draft_ids, config.vocabulary)
        self.config = config
        fused = len(config.layers) * config.width
        self.input_norm = nn.RMSNorm(fused, eps=config.rms_norm_eps) if config.norm_before_fc else None
        self.fc_norm = nn.ModuleList(_norms(config)) if config.fc_norm else None
        self.fc = _linear(fused, config.width)
        self.midlayer = DraftLayer(config)
        self.norm = nn.RMSNorm(config.width, eps=config.rms_norm_eps)
        self.lm_head = _linear(config.width, config.draft_vocabulary)
        self.rotary = LlamaRotaryEmbedding(_rotary_config(config))

    def new_cache(self, capacity: int, batch: int = 1) -> DraftCache:
        """Return an empty cache on this head's device, in its precision."""
        shape = (batch, self.config.kv_heads, capacity, self.config.head_dim)
        return DraftCache(shape, like=self.fc.weight)

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states, after the norm that the config asks for.

        Args:
            states: (…, k·width), the layers ascending. Applied for k = 1 too: EAGLE's code would skip it.
        """
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(states)
        return fused

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the output (…, width) that `logits` reads and later steps are fed.

        Args:
            hidden: (…, width) what the step was fed, the residual.
            attended: (…, width) the attention's output.
        """
        output = self.midlayer.finish(hidden, attended)
        normed: Tensor = self.norm(output) if self.config.norm_output else output
        return normed

    def rotations(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (batch, t, head_dim) of positions (batch, t), in the precision of `like`."""
        cosines, sines = self.rotary(like, positions)
        return cosines, sines

    def forward(
        self,
        hidden: Tensor,
        embeddings: Tensor,
        positions: Tensor,
        attention_mask: Tensor | None = None,
        cache: DraftCache | None = None,
    ) -> Tensor:
        """Run the decoder layer over new slots.

        Args:
            hidden: (batch, t, width): fused states, or the output of an earlier call.
            embeddings: (batch, t, width): the target's embeddings of the next tokens.
            positions: (batch, t): positions for the rotary embedding.
            attention_mask: Additive float (batch, 1, t, past + t); causal over the new slots when not given.
            cache: Holds past keys and values and takes the new ones.

        Returns:
            What later steps feed back, (batch, t, width): the layer's output, before the final norm unless
            `norm_output`.
        """
        layer = self.midlayer
        inputs = layer.attention_inputs(hidden, embeddings)
        rotations = self.rotations(inputs, positions)
        keys, values = layer.self_attn.keys_values(inputs)
        queries, keys = apply_rotary_pos_emb(layer.self_attn.queries(inputs), keys, *rotations)
        if cache is not None:
            keys, values = cache.append(keys, values)
        if attention_mask is None:
            attention_mask = causal_mask(hidden.shape[1], keys.shape[2], like=hidden)
        return self.finish(hidden, layer.self_attn.attend(queries, keys, values, attention_mask))

    def logits(self, output: Tensor) -> Tensor:
        """Return logits over the draft vocabulary (…, draft_vocabulary) of `forward`'s output (…, width)."""
        scores: Tensor = self.lm_head(output if self.config.norm_output else self.norm(output))
        return scores


def _norms(config: HeadConfig) -> list[nn.RMSNorm]:
    return [nn.RMSNorm(config.width, eps=config.rms_norm_eps) for _ in config.layers]


def causal_mask(new: int, total: int, like: Tensor) -> Tensor:
    """Return the additive mask (1, 1, new, total) by which new slots see the past, each other up to themselves."""
    blocked = torch.full((new, total), float("-inf"), dtype=like.dtype, device=like.device)
    return torch.triu(blocked, diagonal=total - new + 1)[None, None]


def _rotary_config(config: HeadConfig) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=config.width,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters=dict(config.rope_parameters),
    )


def save_head(folder: Path, head: Eagle3Head) -> None:
    """Write model.safetensors and config.json; each appears whole or not at all.

    Raises:
        UserError: A file cannot be written.
    """
    write_tensors(folder / WEIGHTS_FILE, head.state_dict(), {"format": "pt"})
    write_json(folder / CONFIG_FILE, head.config.model_dump(mode="json"))


def read_head_config(path: Path) -> HeadConfig:
    """Read a head's config.json.

    Raises:
        UserError: The file is missing or is no head's.
    """
    try:
        return HeadConfig.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: is no head's config: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def load_head(folder: Path, target: Target) -> Eagle3Head:
    """Read a head for its target, onto the target's device and in its precision, without gradients.

    Raises:
        UserError: Files are missing or broken, a tensor is missing or has another shape than the
            config says, or the head was trained for another target.
    """
    config = read_head_config(folder / CONFIG_FILE)
    refuse_other_target(folder, config.target, config.target_hash, target)
    head = head_from_tensors(config, read_tensors(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)
    head.requires_grad_(False).eval()
    head.to(device=target.device, dtype=target.dtype)
    # `to` also rounds the rotary frequencies, and a rounded frequency is wrong by whole turns far from the start
    head.rotary = LlamaRotaryEmbedding(_rotary_config(config)).to(target.device)
    return head


def head_from_tensors(config: HeadConfig, tensors: dict[str, Tensor], source: Path) -> Eagle3Head:
    """Build a head from its weights.

    Args:
        config: Sizes.
        tensors: The weights by name.
        source: The file they come from, for messages.

    Raises:
        UserError: A tensor is missing, unknown or has another shape than the config says, or the draft
            vocabulary is another one.
    """
    draft_ids = stored_draft_ids(tensors, config.draft_vocabulary, config.vocabulary, config.vocabulary_hash, source)
    head = Eagle3Head(config, draft_ids)
    fill(head, tensors, source)
    return head
