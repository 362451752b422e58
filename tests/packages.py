"""A made-up installed distribution that holds a tiny GGUF model."""

from pathlib import Path

import gguf
from safetensors.torch import load_file

from tests.models import PAD, make_folder

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_gguf_package(site: Path, name: str) -> Path:
    """Write a distribution whose module must not be imported; return the folder its weights come from."""
    info, module = site / f"{name}-1.0.dist-info", site / name
    info.mkdir(parents=True)
    module.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nLicense: MIT\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/model.gguf,,\n")
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    folder = make_folder(site / "weights", "llama", layers=2, tied=False)
    _write_gguf(folder, module / "model.gguf")
    return folder


def _write_gguf(folder: Path, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(256)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(
        ["<|endoftext|>", PAD, *(chr(33 + i) for i in range(93)), "ab", *(chr(256 + i) for i in range(160))]
    )
    writer.add_token_types([3, 3, *([1] * 254)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    for name, tensor in load_file(folder / "model.safetensors").items():
        parts = name.removesuffix(".weight").split(".", 3)
        block = name.startswith("model.layers.")
        written = f"blk.{parts[2]}.{NAMES[parts[3]]}" if block else NAMES[".".join(parts)]
        writer.add_tensor(f"{written}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
