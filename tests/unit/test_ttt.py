import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from speclayers.drafting.losses import CHUNK, compare
from speclayers.drafting.ttt import (
    TTTSequence,
    TTTTargets,
    counted_slots,
    first_response_slot,
    ttt_loss,
    ttt_outputs,
)
from tests.drafts import make_head

STEPS = 4
FLAGS = ("norm_before_fc", "fc_norm", "norm_output")
COMBINATIONS = [
    dict(zip(FLAGS, values, strict=True))
    for values in itertools.product((False, True), repeat=3)
    if values[:2] != (True, True)  # refused
]


def make_sequence(head, tokens, response_start, seed):
    generator = torch.Generator().manual_seed(seed)
    width = head.config.width
    states = torch.randn(tokens - 1, len(head.config.layers) * width, generator=generator).double()
    embeddings = torch.randn(tokens, width, generator=generator).double()
    return TTTSequence(states, embeddings, first_response_slot(response_start))


def drafted(head, sequence, slot, steps):
    """Serve: verified slots go through the cache, then the head feeds on itself, one token at a time."""
    cache = head.new_cache(64)
    positions = torch.arange(slot + 1)[None]
    fused = head.fuse(sequence.states[: slot + 1])[None]
    output = head(fused, sequence.embeddings[1 : slot + 2][None], positions, None, cache)[:, -1:]
    outputs = [output]
    for step in range(1, steps):
        embedding = sequence.embeddings[slot + 1 + step][None, None]
        output = head(output, embedding, torch.tensor([[slot + step]]), None, cache)
        outputs.append(output)
    return [head.logits(output)[0, 0] for output in outputs]


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("layers", [(5,), (1, 3, 5), (0, 2, 4, 6)])
def test_ttt_equals_step_by_step_decoding(tiny_target, layers, kv_heads):
    check_against_decoding(make_head(tiny_target(), layers=layers, kv_heads=kv_heads).double())


@torch.no_grad()
@pytest.mark.parametrize("flags", COMBINATIONS[1:], ids=lambda flags: "+".join(k for k in flags if flags[k]))
@pytest.mark.parametrize("layers", [(5,), (1, 3, 5), (0, 2, 4, 6)])
def test_ttt_equals_step_by_step_decoding_whatever_the_norms(tiny_target, layers, flags):
    head = make_head(tiny_target(), layers=layers, **flags).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        if parameter.dim() == 1:  # norms of ones would not show where one is left out twice over
            parameter.mul_(0.5 + torch.rand(parameter.shape, generator=generator))
    check_against_decoding(head)


def check_against_decoding(head):
    sequences = [make_sequence(head, 14, 5, seed=0), make_sequence(head, 9, 1, seed=1), make_sequence(head, 20, 12, 2)]
    outputs = [head.logits(output) for output in ttt_outputs(head, sequences, STEPS)]
    row = 0
    for sequence in sequences:
        for slot in range(sequence.first_slot, sequence.slots):
            reachable = min(STEPS, sequence.slots - slot)
            for step, expected in enumerate(drafted(head, sequence, slot, reachable)):
                torch.testing.assert_close(outputs[step][row], expected, rtol=1e-9, atol=1e-9)
            row += 1
    assert row == len(outputs[0])


@torch.no_grad()
def test_prompt_slots_need_only_keys_and_values(tiny_target):
    head = make_head(tiny_target()).double()
    sequence = make_sequence(head, 15, 7, seed=0)
    full = ttt_outputs(head, [sequence._replace(first_slot=0)], STEPS)
    short = ttt_outputs(head, [sequence], STEPS)
    for all_slots, response_slots in zip(full, short, strict=True):
        torch.testing.assert_close(response_slots, all_slots[6:], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_sequences_of_a_batch_do_not_see_each_other(tiny_target):
    head = make_head(tiny_target()).double()
    sequences = [make_sequence(head, 11, 3, seed=0), make_sequence(head, 8, 4, seed=1)]
    together = ttt_outputs(head, sequences, STEPS)
    alone = [ttt_outputs(head, [sequence], STEPS) for sequence in sequences]
    for step in range(STEPS):
        torch.testing.assert_close(together[step], torch.cat([a[step] for a in alone]), rtol=1e-12, atol=1e-12)


def test_gradients_of_a_sequence_reach_no_other(tiny_target):
    head = make_head(tiny_target()).double()
    sequences = [make_sequence(head, 11, 3, seed=0), make_sequence(head, 8, 4, seed=1)]
    leaves = [(s.states.requires_grad_(), s.embeddings.requires_grad_()) for s in sequences]
    rows = sequences[0].slots - sequences[0].first_slot
    own = sum(output[:rows].square().sum() for output in ttt_outputs(head, sequences, STEPS))
    gradients = torch.autograd.grad(own, [leaf for pair in leaves for leaf in pair], materialize_grads=True)
    assert [bool(gradient.abs().max() > 0) for gradient in gradients] == [True, True, False, False]


def test_loss_of_a_batch_is_the_mean_over_its_slots_wherever_they_lie(tiny_target):
    """Packed = unpacked: the batch's loss and gradient are the slot-weighted means of its sequences' alone."""
    head = make_head(tiny_target(), draft_ids=range(256)).double()
    lengths, starts = [11, 8, 6], [3, 4, 1]
    sequences = [
        make_sequence(head, n, start, seed) for seed, (n, start) in enumerate(zip(lengths, starts, strict=True))
    ]
    counted = [counted_slots(torch.full((n,), 5), start, {0}, 3) for n, start in zip(lengths, starts, strict=True)]
    targets = [make_targets(c.shape[1], 256, [7] * c.shape[1], c.tolist(), seed) for seed, c in enumerate(counted)]
    packed = TTTTargets(
        *(torch.cat(column, dim=axis) for column, axis in zip(zip(*targets, strict=True), (0, 0, 0, 1), strict=True))
    )
    loss, metrics = ttt_loss(head, sequences, packed, 1.0)
    gradient = torch.autograd.grad(loss, head.fc.weight)[0]
    alone = [ttt_loss(head, [sequence], own, 1.0)[1] for sequence, own in zip(sequences, targets, strict=True)]
    for step, measured in enumerate(metrics):
        weights = [one[step].slots for one in alone]
        assert measured.slots == sum(weights)
        for name in ("loss", "accuracy", "expected_acceptance"):
            values = [getattr(one[step], name) or 0.0 for one in alone]
            assert getattr(measured, name) == pytest.approx(np.average(values, weights=weights))
    expected = torch.zeros_like(gradient)
    for sequence, own in zip(sequences, targets, strict=True):
        for step, slots in enumerate(own.counted.sum(1).tolist()):
            only = own.counted.clone()
            only[torch.arange(len(only)) != step] = False
            if slots:
                part = ttt_loss(head, [sequence], own._replace(counted=only), 1.0)[0]
                expected += torch.autograd.grad(part, head.fc.weight)[0] * slots / metrics[step].slots
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_loss_begins_at_the_first_response_token_and_ends_before_the_end_token(tiny_target):
    head = make_head(tiny_target(), draft_ids=range(256)).double()
    ids = torch.tensor([5, 6, 7, 8, 9, 10, 0])  # prompt 5 6 7, response 8 9 10, end
    sequence = make_sequence(head, 7, 3, seed=0)
    targets = make_targets(4, 256, [20, 21, 22, 23], counted_slots(ids, 3, {0}, 4).tolist())
    embeddings = sequence.embeddings.requires_grad_()
    loss, metrics = ttt_loss(head, [sequence], targets, 1.0)
    assert [m.slots for m in metrics] == [3, 2, 1, 0]
    read = torch.autograd.grad(loss, embeddings)[0].abs().sum(1) > 0
    assert read.tolist() == [False, True, True, True, True, True, False]  # token 0 follows no slot
    compared = []
    for row in range(4):
        restricted = targets.restricted.clone()
        restricted[row] = 1 / 256
        changed = ttt_loss(head, [sequence], targets._replace(restricted=restricted), 1.0)[0]
        compared.append(abs(float((changed - loss).detach())) > 1e-9)
    # Rows are the target behind tokens 8, 9, 10 and the end: it predicts the end, and nothing is learnt behind it.
    assert compared == [True, True, True, False]


@pytest.mark.parametrize("layers", [(5,), (1, 3, 5)])
def test_a_head_overfits_four_sequences_at_every_step(tiny_target, layers):
    """States, tokens and targets belong together: what is to be learnt is shifted by one slot nowhere."""
    head = make_head(tiny_target(), layers=layers, draft_ids=range(2, 66), initialise="random")
    table = torch.randn(66, head.config.width, generator=torch.Generator().manual_seed(9))
    sequences, counted, best = [], [], []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, 66, (14,), generator=generator)
        states = torch.randn(13, len(layers) * head.config.width, generator=generator)
        sequences.append(TTTSequence(states, table[ids], first_response_slot(5)))
        counted.append(counted_slots(ids, 5, {0}, STEPS))
        best.append(torch.cat((ids[6:], torch.tensor([2]))))
    labels = torch.cat(best)
    restricted = F.one_hot(labels - 2, 64).float()
    targets = TTTTargets(restricted, restricted, labels, torch.cat(counted, dim=1))
    optimiser = torch.optim.AdamW(head.parameters(), lr=5e-3)
    for _ in range(150):
        loss, metrics = ttt_loss(head, sequences, targets, 1.0)
        if min(m.expected_acceptance for m in metrics) > 0.9:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert [m.slots for m in metrics] == [36, 32, 28, 24]
    assert min(m.accuracy for m in metrics) > 0.95
    assert min(m.expected_acceptance for m in metrics) > 0.9


def distributions(slots=6, vocabulary=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(slots, vocabulary, generator=generator).double().requires_grad_()
    restricted = (2 * torch.randn(slots, vocabulary, generator=generator)).double().softmax(-1)
    restricted = torch.cat((restricted[:-1], F.one_hot(torch.tensor([3]), vocabulary).double()))  # zeros, too
    return logits, restricted, 0.8 * restricted


def slot_losses(loss, logits, restricted, full):
    return compare(loss, logits, restricted, full, torch.arange(len(logits))).losses


def test_one_walk_gives_what_separate_operations_give():
    slots = CHUNK + 5
    logits, restricted, full = distributions(slots, 40)
    logits = (30 * logits.detach()).requires_grad_()  # far beyond what exp could hold without its largest
    rows = torch.randperm(slots, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(0, 2, slots).double()
    found = compare("cross_entropy", logits, restricted, full, rows)
    expected = F.cross_entropy(logits, restricted[rows], reduction="none")
    torch.testing.assert_close(found.losses, expected)
    torch.testing.assert_close(
        torch.autograd.grad((weights * found.losses).sum(), logits)[0],
        torch.autograd.grad((weights * expected).sum(), logits)[0],
    )
    assert found.drafted.tolist() == logits.argmax(-1).tolist()
    torch.testing.assert_close(found.acceptance, torch.minimum(logits.detach().softmax(-1), full[rows]).sum(-1))


def test_kl_has_the_gradient_of_cross_entropy_and_is_zero_where_both_agree():
    logits, restricted, full = distributions()
    gradients = [
        torch.autograd.grad(slot_losses(loss, logits, restricted, full).sum(), logits)[0]
        for loss in ("cross_entropy", "kl")
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    expected = F.kl_div(logits.log_softmax(-1), restricted, reduction="none").sum(-1)
    torch.testing.assert_close(slot_losses("kl", logits, restricted, full), expected)
    perfect = restricted[:-1].log()
    torch.testing.assert_close(slot_losses("kl", perfect, restricted[:-1], full[:-1]), torch.zeros(5).double())


def test_lk_is_its_definition_with_a_weight_that_is_not_differentiated():
    logits, restricted, full = distributions()
    q = logits.softmax(-1)
    acceptance = torch.minimum(q, full).sum(-1)
    weight = torch.exp(-3 * acceptance).detach()
    expected = weight * F.kl_div(q.log(), restricted, reduction="none").sum(-1) + (1 - weight) * (1 - acceptance)
    found = slot_losses("lk", logits, restricted, full)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), logits)[0], torch.autograd.grad(expected.sum(), logits)[0]
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "kl", "lk"])
def test_every_loss_teaches_the_target(loss):
    logits, restricted, _ = distributions()
    logits = logits.detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        slot_losses(loss, logits, restricted, restricted).sum().backward()
        optimiser.step()
    assert float((logits.detach().softmax(-1) - restricted).abs().sum(-1).max()) < 0.05


# Tokens: prompt at 0-2, response at 3-6. Slots 2-5 hold the features of the last prompt token to those of the
# last but one; slot 2 drafts from the first response token. Rows are steps, columns slots.
BOUNDARIES = [
    pytest.param([5, 5, 5, 5, 5, 5, 5], 3, ["1111", "1110", "1100", "1000", "0000"], id="ends-at-budget"),
    pytest.param([5, 5, 5, 5, 5, 5, 0], 3, ["1110", "1100", "1000", "0000", "0000"], id="ends-with-end-token"),
    pytest.param([5, 5, 0, 5, 5, 5, 5], 3, ["1111", "1110", "1100", "1000", "0000"], id="end-token-in-prompt"),
    pytest.param([5, 5, 5, 0], 3, ["0", "0", "0", "0", "0"], id="answer-is-the-end-token"),
    pytest.param([5, 5, 5, 5], 3, ["1", "0", "0", "0", "0"], id="one-token"),
    pytest.param([5, 5, 5], 3, ["", "", "", "", ""], id="no-response"),
    pytest.param([5, 5, 5, 5], 0, ["111", "110", "100", "000", "000"], id="no-prompt"),
]


@pytest.mark.parametrize(("ids", "response_start", "expected"), BOUNDARIES)
def test_slots_that_count_are_those_serving_can_meet(ids, response_start, expected):
    counted = counted_slots(torch.tensor(ids), response_start, {0, 1}, 5)
    assert ["".join(str(int(flag)) for flag in row) for row in counted] == expected


def make_targets(rows, draft_vocabulary, best, counted, seed=0):
    logits = torch.randn(rows, draft_vocabulary, generator=torch.Generator().manual_seed(seed)).double()
    restricted = logits.softmax(-1)
    return TTTTargets(restricted, 0.7 * restricted, torch.tensor(best), torch.tensor(counted))


@torch.no_grad()
def test_loss_and_metrics_equal_their_definition(tiny_target):
    head = make_head(tiny_target(), draft_ids=range(0, 256, 2)).double()
    sequences = [make_sequence(head, 8, 4, seed=0), make_sequence(head, 7, 4, seed=1)]
    counted = [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0]]
    best = [10, 11, 12, 14, 16, 13, 18]  # odd ids lie outside the draft vocabulary
    targets = make_targets(7, 128, best, np.array(counted, dtype=bool))
    loss, metrics = ttt_loss(head, sequences, targets, decay=0.8)

    expected = 0.0
    for step, output in enumerate(ttt_outputs(head, sequences, 3)):
        losses, right, overlaps, slots = [], 0, [], 0
        for row in range(7):
            if not counted[step][row]:
                continue
            q = head.logits(output[row]).softmax(-1)
            slots += 1
            overlaps.append(float(torch.minimum(q, targets.full[row + step]).sum()))
            right += int(2 * q.argmax() == best[row + step])
            if best[row + step] % 2 == 0:
                losses.append(-float((targets.restricted[row + step] * q.log()).sum()))
        expected += 0.8**step * np.mean(losses)
        assert metrics[step].slots == slots
        assert metrics[step].loss == pytest.approx(np.mean(losses))
        assert metrics[step].accuracy == pytest.approx(right / slots)
        assert metrics[step].expected_acceptance == pytest.approx(np.mean(overlaps))
    assert float(loss) == pytest.approx(expected)


def test_token_outside_the_draft_vocabulary_counts_as_wrong_and_teaches_nothing(tiny_target):
    head = make_head(tiny_target(), draft_ids=range(0, 256, 2)).double()
    sequences = [make_sequence(head, 4, 2, seed=0)]
    right = [int(2 * logits.argmax()) for logits in head.logits(ttt_outputs(head, sequences, 1)[0])]
    known = make_targets(2, 128, right, [[True, True]])
    _, (metrics,) = ttt_loss(head, sequences, known, 0.8)
    assert metrics.accuracy == 1
    _, (metrics,) = ttt_loss(head, sequences, known._replace(best=torch.tensor([right[0], 11])), 0.8)
    assert metrics.accuracy == 0.5
    first_only = known._replace(counted=torch.tensor([[True, False]]))
    assert metrics.loss == ttt_loss(head, sequences, first_only, 0.8)[1][0].loss
    loss, (metrics,) = ttt_loss(head, sequences, known._replace(best=torch.tensor([11, 11])), 0.8)
    assert (metrics.loss, metrics.accuracy, metrics.slots, loss.requires_grad) == (None, 0, 2, False)


def test_steps_without_slots_are_reported_empty(tiny_target):
    head = make_head(tiny_target()).double()
    targets = make_targets(2, 128, [2, 4], [[True, True], [True, False], [False, False]])
    loss, metrics = ttt_loss(head, [make_sequence(head, 4, 2, seed=0)], targets, 0.8)
    assert metrics[2] == (None, None, None, 0)
    assert float(loss.detach()) == pytest.approx(metrics[0].loss + 0.8 * metrics[1].loss)


def test_gradient_reaches_every_weight(tiny_target):
    head = make_head(tiny_target()).double()
    targets = make_targets(4, 128, [2, 4, 6, 8], counted_slots(torch.arange(2, 8), 2, {0}, 3).tolist())
    loss, _ = ttt_loss(head, [make_sequence(head, 6, 2, seed=0)], targets._replace(best=torch.full((4,), 2)), 0.8)
    loss.backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
