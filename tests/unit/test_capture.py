import pytest
import torch

from speclayers.targets.capture import capture_states


def hooks(target) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in target.model.modules())


def test_each_forward_replaces_the_states(tiny_target):
    target = tiny_target(layers=3)
    with torch.no_grad(), capture_states(target, [1, 3]) as captured:
        assert len(captured) == 0
        target.model(torch.tensor([[5, 6, 7]]), use_cache=False)
        assert captured[1].shape == (1, 3, target.width)
        target.model(torch.tensor([[5, 6], [7, 8]]), use_cache=False)
    assert sorted(captured) == [1, 3]
    assert captured[3].shape == (2, 2, target.width)


def test_logits_inside_the_block_leave_the_states_alone(tiny_target):
    target = tiny_target(layers=3)
    with torch.no_grad(), capture_states(target, [3]) as captured:
        target.model(torch.tensor([[5, 6, 7]]), use_cache=False)
        before = captured[3].clone()
        target.logits(torch.ones(4, target.width))
        assert torch.equal(captured[3], before)


def test_hooks_are_removed_even_after_an_error(tiny_target):
    target = tiny_target(layers=3)
    with pytest.raises(RuntimeError, match="stop"), capture_states(target, [0, 3]):
        raise RuntimeError("stop")
    assert hooks(target) == 0


def test_a_failed_forward_leaves_no_stale_states(tiny_target):
    target = tiny_target(layers=3)
    with torch.no_grad(), capture_states(target, [0, 3]) as captured:
        target.model(torch.tensor([[5, 6]]), use_cache=False)
        with pytest.raises(IndexError):
            target.model(torch.tensor([[99999]]), use_cache=False)
        assert 3 not in captured


def test_layers_outside_the_model_are_refused(tiny_target):
    target = tiny_target(layers=3)
    with pytest.raises(ValueError, match=r"layer 4 is outside 0 … 3"), capture_states(target, [4]):
        pass
