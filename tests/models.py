"""Tiny random models with a tiny tokenizer, as folders in the form that fetching writes."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from speclayers.config import Runtime
from speclayers.targets.describe import Provenance, describe_folder
from speclayers.targets.manifest import write_manifest
from speclayers.targets.target import Target, load_target

END, PAD = "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_tokenizer(vocabulary: int = 256, chat: bool = True, pad: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level characters, numbered from 2 on (0 ends, 1 pads); bytes beyond the vocabulary have no token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (not c.isascii(), c))
    tokens = [END, PAD, *alphabet][:vocabulary]
    backend = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD if pad else None)
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_config(architecture: str, layers: int, width: int, vocabulary: int, tied: bool) -> Any:
    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,  # the usual 0.02 makes states too alike to tell layers apart
    }
    if architecture == "gpt2":
        return GPT2Config(n_embd=width, n_layer=layers, n_head=4, n_positions=512, **shared)
    shared |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    shared |= {"intermediate_size": 2 * width}
    if architecture == "gpt_neox":
        return GPTNeoXConfig(**shared)
    shared |= {"num_key_value_heads": 2, "head_dim": width // 4}
    if architecture == "granite":
        shared |= {"embedding_multiplier": 3.0, "logits_scaling": 8.0, "residual_multiplier": 0.5}
        return GraniteConfig(**{key: value for key, value in shared.items() if key != "head_dim"})
    if architecture == "cohere":
        return CohereConfig(logit_scale=0.25, **{key: value for key, value in shared.items() if key != "head_dim"})
    if architecture == "gemma2":
        return Gemma2Config(query_pre_attn_scalar=width // 4, sliding_window=512, **shared)
    kinds = {"llama": LlamaConfig, "qwen3": Qwen3Config, "gemma": GemmaConfig, "mistral": MistralConfig}
    return kinds[architecture](**shared)


def make_folder(
    folder: Path,
    architecture: str = "llama",
    layers: int = 6,
    width: int = 32,
    vocabulary: int = 256,
    seed: int = 0,
    tied: bool = True,
    chat: bool = True,
    pad: bool = True,
    rope_parameters: dict[str, Any] | None = None,
) -> Path:
    """Write a random model without manifest, as save_pretrained does."""
    config = tiny_config(architecture, layers, width, vocabulary, tied)
    if rope_parameters is not None:
        config.rope_parameters = dict(rope_parameters)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tiny_tokenizer(vocabulary, chat, pad).save_pretrained(folder)
    return folder


def make_target(
    tmp_path: Path,
    architecture: str = "llama",
    layers: int = 6,
    width: int = 32,
    vocabulary: int = 256,
    seed: int = 0,
    runtime: Runtime | None = None,
    **settings: Any,
) -> Target:
    """Write a random model with its manifest and load it."""
    name = f"{architecture}-{seed}"
    folder = make_folder(tmp_path / name, architecture, layers, width, vocabulary, seed, **settings)
    write_manifest(folder, describe_folder(folder, name, Provenance({"kind": "folder", "path": name})))
    return load_target(folder, name, runtime or Runtime())
