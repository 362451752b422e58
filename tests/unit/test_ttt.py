import numpy as np
import pytest
import torch

from speclayers.drafting.ttt import TTTSequence, TTTTargets, counted_slots, first_response_slot, ttt_loss, ttt_outputs
from tests.drafts import make_head

STEPS = 4


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
    head = make_head(tiny_target(), layers=layers, kv_heads=kv_heads).double()
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
