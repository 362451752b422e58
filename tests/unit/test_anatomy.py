from dataclasses import replace

import pytest
import torch
from transformers import AutoModel, LlamaConfig, T5Config, T5ForConditionalGeneration

from speclayers.errors import UserError
from speclayers.targets.anatomy import find_anatomy
from speclayers.targets.capture import capture_states
from speclayers.targets.target import _check_logits

FAMILIES = ["llama", "qwen3", "gemma", "gemma2", "mistral", "gpt_neox", "gpt2", "granite", "cohere"]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_states_are_transformers_hidden_states(tiny_target, family, tied):
    target = tiny_target(family, layers=3, tied=tied)
    ids = torch.randint(2, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), capture_states(target, range(4)) as captured:
        output = target.model(ids, output_hidden_states=True, use_cache=False)
    assert target.manifest.tied is tied
    for layer in range(3):
        torch.testing.assert_close(captured[layer], output.hidden_states[layer], rtol=0, atol=0)
    assert not torch.allclose(captured[3], output.hidden_states[3])  # post-norm there, pre-norm here
    torch.testing.assert_close(target.logits(captured[3]), output.logits)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt2"])
def test_embed_is_what_enters_the_first_block(tiny_target, family):
    target = tiny_target(family, layers=2)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), capture_states(target, [0]) as captured:
        target.model(ids, use_cache=False)
    torch.testing.assert_close(target.embed(ids), captured[0])


def test_softcapping_models_run_without_sdpa(tiny_target):
    assert tiny_target("gemma2", layers=2).model.config._attn_implementation == "eager"
    assert tiny_target("llama", layers=2).model.config._attn_implementation == "sdpa"


def test_logits_made_another_way_are_refused_by_name(tiny_target):
    made = tiny_target("llama", layers=2)
    other = torch.nn.Linear(made.width, made.vocabulary)
    with pytest.raises(UserError, match="LlamaForCausalLM makes its logits in a way this version does not know"):
        _check_logits(replace(made, anatomy=made.anatomy._replace(lm_head=other)))


def test_encoder_decoders_are_refused_by_name():
    model = T5ForConditionalGeneration(T5Config(vocab_size=16, d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8))
    with pytest.raises(UserError, match="T5ForConditionalGeneration: is an encoder-decoder"):
        find_anatomy(model)


def test_models_without_lm_head_are_refused_by_name():
    shape = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    model = AutoModel.from_config(LlamaConfig(num_attention_heads=1, **shape))
    with pytest.raises(UserError, match="LlamaModel: has no LM head"):
        find_anatomy(model)


def test_models_without_final_norm_are_refused_by_name(tiny_target):
    model = tiny_target("gpt2", layers=2).model
    del model.transformer.ln_f
    with pytest.raises(UserError, match="GPT2LMHeadModel: found 0 final norms"):
        find_anatomy(model)
