"""A target without some of its layers, beside models that were built without them."""

import copy

import pytest
import torch

from speclayers.errors import UserError
from speclayers.targets.block_rows import rows_at_last_token
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.capture import capture_states
from speclayers.targets.skipping import Skipped, require_skippable, skip_layers

FAMILIES = ["llama", "qwen3", "mistral", "gemma", "gemma2", "granite", "cohere", "gpt_neox", "gpt2"]
PROMPT = [5, 9, 2, 30, 17, 44, 8]
LAST_OF_PART = {"attention": ("o_proj", "dense", "c_proj"), "mlp": ("down_proj", "dense_4h_to_h", "c_proj")}


def logits_of(target, tokens=PROMPT):
    with torch.no_grad():
        return target.model(torch.tensor([tokens]), use_cache=False).logits[0]


def cut_down(target, blocks):
    """A copy of the model that never had some of its blocks."""
    model = copy.deepcopy(target.model)
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == target.n_layers:
                kept = [block for place, block in enumerate(child, start=1) if place not in blocks]
                setattr(module, name, torch.nn.ModuleList(kept))
    return model


def muted(target, skipped):
    """A copy of the model some of whose blocks' attention or MLP ends in zeros."""
    model = copy.deepcopy(target.model)
    (blocks,) = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == target.n_layers]
    for kind, numbers in (("attention", skipped.attention), ("mlp", skipped.mlp)):
        for number in numbers:
            for name, module in blocks[number - 1].named_modules():
                part, _, last = name.rpartition(".")
                if last in LAST_OF_PART[kind] and ("mlp" in part) == (kind == "mlp"):
                    for weight in module.parameters():
                        weight.data.zero_()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_skipping_blocks_is_running_a_model_without_them(tiny_target, family):
    target = tiny_target(family, layers=5)
    require_skippable(target)
    with skip_layers(target, Skipped.blocks([1, 4])):
        ours = logits_of(target)
    with torch.no_grad():
        theirs = cut_down(target, {1, 4})(torch.tensor([PROMPT]), use_cache=False).logits[0]
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, logits_of(target), atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_skipping_attention_or_mlp_alone_is_taking_it_from_the_sum(tiny_target, family):
    target = tiny_target(family, layers=4)
    require_skippable(target, parts=True)
    skipped = Skipped(attention=frozenset({1, 3}), mlp=frozenset({2, 3}))
    assert skipped.whole == {3}
    assert skipped.parts == {1, 2}
    assert skipped.layer_passes(4) == 2.0
    with skip_layers(target, skipped):
        ours = logits_of(target)
    with torch.no_grad():
        theirs = muted(target, skipped)(torch.tensor([PROMPT]), use_cache=False).logits[0]
    assert torch.allclose(ours, theirs, atol=1e-5)
    for part in (Skipped(attention=skipped.attention), Skipped(mlp=skipped.mlp)):
        with skip_layers(target, part):
            assert not torch.allclose(ours, logits_of(target), atol=1e-3)


def test_layers_are_back_after_an_exception_and_after_nested_skips(tiny_target):
    target = tiny_target()
    before = logits_of(target)
    with pytest.raises(RuntimeError, match="stop"), skip_layers(target, Skipped.blocks([2])):
        raise RuntimeError("stop")
    assert torch.equal(logits_of(target), before)
    with skip_layers(target, Skipped.blocks([2])):
        outer = logits_of(target)
        with skip_layers(target, Skipped(mlp=frozenset({2, 5}))):
            assert not torch.equal(logits_of(target), outer)
        assert torch.equal(logits_of(target), outer)
    assert torch.equal(logits_of(target), before)
    assert not any("forward" in module.__dict__ for module in target.model.modules())


def test_a_forward_of_its_own_that_a_block_had_comes_back(tiny_target):
    target = tiny_target()
    block = target.anatomy.blocks[1]
    own = block.forward
    block.forward = own  # as accelerate leaves it
    with skip_layers(target, Skipped.blocks([2])):
        assert block.forward is not own
    assert block.__dict__["forward"] is own


def run(target, cache, tokens, start):
    ids, positions = torch.tensor([tokens]), torch.arange(start, start + len(tokens))[None]
    with torch.no_grad():
        return target.model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True).logits[0]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("skipped", [Skipped.blocks([1, 4]), Skipped(frozenset({1, 2}), frozenset({1, 3}))])
def test_drafting_in_place_leaves_the_cache_as_it_was(tiny_target, family, skipped):
    target = tiny_target(family, layers=4)
    cache = PreallocatedCache(target, 20)
    run(target, cache, PROMPT, 0)
    with cache.session(), skip_layers(target, skipped):
        drafted = [run(target, cache, [token], cache.get_seq_length()) for token in (3, 12, 7)]
    assert len(PROMPT) == cache.get_seq_length() == min(layer.length for layer in cache.layers)
    fresh = PreallocatedCache(target, 20)
    run(target, fresh, PROMPT, 0)
    with skip_layers(target, skipped):
        together = run_masked(target, fresh, [3, 12, 7], len(PROMPT))
    assert torch.allclose(torch.cat(drafted), together, atol=1e-5)
    assert torch.allclose(run(target, cache, [21], len(PROMPT))[-1], logits_of(target, [*PROMPT, 21])[-1], atol=1e-5)


def run_masked(target, cache, tokens, start):
    mask = torch.zeros(1, 1, len(tokens), start + len(tokens))
    mask[..., start:] = torch.triu(torch.full((len(tokens), len(tokens)), torch.finfo(torch.float32).min), 1)
    with torch.no_grad():
        ids, positions = torch.tensor([tokens]), torch.arange(start, start + len(tokens))[None]
        return target.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True
        ).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_at_the_last_token_are_each_alone_there(tiny_target, family):
    """Every row gives what the block gives at that position when the token is first run over."""
    target = tiny_target(family, layers=3)
    cache = PreallocatedCache(target, 30)
    with capture_states(target, range(4)) as captured:
        run(target, cache, PROMPT, 0)
        states = [captured[layer][0, -1] for layer in range(4)]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad(), rows_at_last_token(target, cache, 4) as rows:
        for block in (1, 2, 3):
            others = torch.randn(3, target.width, generator=generator)
            given = rows.run(block, torch.stack([others[0], states[block - 1], *others[1:]]))
            assert torch.allclose(given[1], states[block], atol=1e-4)
            assert torch.allclose(given[2:], rows.run(block, others[1:]), atol=1e-4)
            with pytest.raises(ValueError, match="5 rows where at most 4"):
                rows.run(block, torch.randn(5, target.width))
    assert torch.allclose(run(target, cache, [21], len(PROMPT))[-1], logits_of(target, [*PROMPT, 21])[-1], atol=1e-4)


def test_blocks_that_the_model_lacks_cannot_be_skipped(tiny_target):
    target = tiny_target(layers=3)
    with pytest.raises(ValueError, match="block 4 is outside 1 … 3"), skip_layers(target, Skipped.blocks([4])):
        pass


def test_a_family_whose_blocks_return_something_else_is_refused(tiny_target, monkeypatch):
    target = tiny_target(layers=3)
    kind = type(target.anatomy.blocks[0])
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args, **kwargs: (own(self, *args, **kwargs),))
    monkeypatch.setattr(type(target.anatomy.body), "forward", body_of_tuples)
    with pytest.raises(UserError, match=r"block 1 of LlamaForCausalLM returns a tuple, expected its input's shape"):
        require_skippable(target)


def body_of_tuples(self, input_ids, use_cache):
    states = self.embed_tokens(input_ids)
    angles = self.rotary_emb(states, torch.arange(states.shape[1])[None])
    for block in self.layers:
        (states,) = block(states, position_embeddings=angles)
    return states


def test_parts_that_are_no_plain_summand_are_refused(tiny_target, monkeypatch):
    target = tiny_target(layers=3)
    kind = type(target.anatomy.blocks[0])
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, states, **kwargs: 0.5 * own(self, states, **kwargs))
    require_skippable(target)
    with pytest.raises(UserError, match=r"block 1 of LlamaForCausalLM changes its input without attention and MLP"):
        require_skippable(target, parts=True)


def test_parts_that_cannot_be_found_are_refused(tiny_target):
    target = tiny_target(layers=2)
    target.anatomy.blocks[1].second_attention = copy.deepcopy(target.anatomy.blocks[1].self_attn)
    with pytest.raises(UserError, match=r"found 2 modules of attention in block 2"):
        require_skippable(target, parts=True)
