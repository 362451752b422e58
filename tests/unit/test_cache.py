import pytest
import torch

from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache

FAMILIES = ["llama", "qwen3", "gemma", "gemma2", "mistral", "gpt_neox", "gpt2"]
TEXT = torch.randint(2, 200, (2, 10), generator=torch.Generator().manual_seed(0))


def positions(start: int, end: int) -> torch.Tensor:
    return torch.arange(start, end)[None].expand(2, -1)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_stepwise_logits_equal_one_forward(tiny_target, family):
    target = tiny_target(family, layers=2)
    whole = target.model(TEXT, use_cache=False).logits
    cache = PreallocatedCache(target, capacity=10)
    pieces = [
        target.model(TEXT[:, start:end], position_ids=positions(start, end), cache=cache).logits
        for start, end in ((0, 6), (6, 7), (7, 10))
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    assert cache.get_seq_length() == 10


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_tree_rows_kept_equal_recomputation(tiny_target, family):
    # After six tokens a tree of three: 6 and 8 form the accepted path, 7 is a rejected sibling of 6.
    target = tiny_target(family, layers=2)
    cache = PreallocatedCache(target, capacity=12)
    target.model(TEXT[:, :6], position_ids=positions(0, 6), cache=cache)
    sees = torch.zeros(3, 9, dtype=torch.bool)
    sees[:, :6] = sees[0, 6] = sees[1, 7] = sees[2, 6] = sees[2, 8] = True
    mask = torch.zeros(3, 9).masked_fill(~sees, torch.finfo(torch.float32).min)[None, None].expand(2, -1, -1, -1)
    nodes = torch.stack([TEXT[:, 6], TEXT[:, 9], TEXT[:, 7]], dim=1)
    depths = torch.tensor([[6, 6, 7]]).expand(2, -1)
    tree = target.model(nodes, attention_mask=mask, position_ids=depths, cache=cache).logits
    cache.keep_rows(6, torch.tensor([6, 8]))
    after = target.model(TEXT[:, 8:9], position_ids=positions(8, 9), cache=cache).logits
    whole = target.model(TEXT[:, :9], use_cache=False).logits
    torch.testing.assert_close(tree[:, [0, 2]], whole[:, 6:8])
    torch.testing.assert_close(after[:, 0], whole[:, 8])


@torch.no_grad()
def test_cropping_equals_never_having_written(tiny_target):
    target = tiny_target(layers=2)
    cache = PreallocatedCache(target, capacity=10)
    target.model(TEXT, position_ids=positions(0, 10), cache=cache)
    cache.crop_to(5)
    cache.crop(-1)
    again = target.model(TEXT[:, 4:], position_ids=positions(4, 10), cache=cache).logits
    torch.testing.assert_close(again, target.model(TEXT, use_cache=False).logits[:, 4:])


@torch.no_grad()
def test_a_session_forgets_what_some_blocks_appended_even_after_an_exception(tiny_target):
    target = tiny_target(layers=2)
    cache = PreallocatedCache(target, capacity=12)
    target.model(TEXT[:, :6], position_ids=positions(0, 6), cache=cache)
    keys = cache.layers[1].keys[:, :, :3].clone()
    with cache.session():
        cache.layers[1].update(keys, keys)  # block 0 is skipped
        assert (cache.get_seq_length(), cache.get_mask_sizes(2, 0)) == (9, (11, 0))
        cache.crop_to(8)
        with pytest.raises(ValueError, match="were written"), cache.session():
            cache.layers[0].update(*[torch.cat([keys] * 3, dim=2)] * 2)
        assert [layer.length for layer in cache.layers] == [6, 8]
    assert [layer.length for layer in cache.layers] == [6, 6]
    again = target.model(TEXT[:, 6:], position_ids=positions(6, 10), cache=cache).logits
    torch.testing.assert_close(again, target.model(TEXT, use_cache=False).logits[:, 6:])
    with pytest.raises(ValueError, match="cannot crop a cache of 10 tokens to 9"), cache.session():
        cache.crop_to(9)
    cache.crop_to(9)


@torch.no_grad()
def test_selecting_sequences_keeps_theirs(tiny_target):
    target = tiny_target(layers=2)
    cache = PreallocatedCache(target, capacity=10)
    target.model(TEXT[:, :9], position_ids=positions(0, 9), cache=cache)
    cache.batch_select_indices(torch.tensor([1]))
    last = target.model(TEXT[1:, 9:], position_ids=torch.tensor([[9]]), cache=cache).logits
    torch.testing.assert_close(last, target.model(TEXT[1:], use_cache=False).logits[:, 9:])


@torch.no_grad()
def test_reset_forgets_all_and_reuses_the_buffers(tiny_target):
    target = tiny_target(layers=2)
    cache = PreallocatedCache(target, capacity=10)
    first = target.model(TEXT, position_ids=positions(0, 10), cache=cache).logits
    place = cache.layers[0].keys.data_ptr()
    cache.reset()
    assert torch.equal(target.model(TEXT, position_ids=positions(0, 10), cache=cache).logits, first)
    assert cache.layers[0].keys.data_ptr() == place


def test_overflow_and_wrong_rows_are_refused(tiny_target):
    target = tiny_target(layers=2)
    cache = PreallocatedCache(target, capacity=4)
    with pytest.raises(ValueError, match="cache holds 4 tokens; 10 were written"):
        target.model(TEXT, cache=cache)
    cache.reset()
    target.model(TEXT[:, :4], cache=cache)
    for rows in ([1, 3], [3, 2], [3, 4]):
        with pytest.raises(ValueError, match="do not ascend within"):
            cache.keep_rows(2, torch.tensor(rows))
    with pytest.raises(ValueError, match="cannot crop"):
        cache.crop_to(5)


def test_sequences_beyond_a_sliding_window_are_refused(tiny_target):
    with pytest.raises(UserError, match="a sequence of 513 tokens exceeds its sliding window of 512"):
        PreallocatedCache(tiny_target("gemma2", layers=2), capacity=513)


def test_blocks_without_a_growing_past_are_refused(tiny_target):
    target = tiny_target(layers=2)
    target.model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UserError, match="LlamaForCausalLM has linear_attention layers, which are not supported"):
        PreallocatedCache(target, capacity=8)
