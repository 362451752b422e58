"""The draft tree is EAGLE-2's, closed under parents and reproducible."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speclayers.drafting.tree import TreeShape, ancestor_mask, build_tree, shape_of, stable_topk
from speclayers.errors import UserError
from speclayers.names import ShapeName


class PathScores:
    """Log-probabilities that depend on the whole path; multiples of 1/4, so that sums are exact and ties abound."""

    def __init__(self, vocabulary, seed, coarse=4):
        self.vocabulary, self.seed, self.coarse = vocabulary, seed, coarse
        self.paths = None

    def of(self, path):
        generator = torch.Generator().manual_seed(hash((self.seed, *path)) % 2**31)
        return -torch.randint(0, 12, (self.vocabulary,), generator=generator) / self.coarse

    def expand(self, beams):
        above = self.paths or [()]
        pairs = zip(beams.parents.tolist(), beams.tokens.tolist(), strict=True)
        self.paths = [(*above[parent], token) for parent, token in pairs]
        return torch.stack([self.of(path) for path in self.paths])


def reference_tree(scores, shape):
    """EAGLE-2's tree in plain Python: lists, loops and sorts."""

    def best(candidates, count):
        return sorted(candidates, key=lambda c: (-c[0], c[1]))[:count]

    def children_of(path, score):
        log_probabilities = scores.of(path).tolist()
        ranked = best([(value, token) for token, value in enumerate(log_probabilities)], shape.top_k)
        return [(score + value, (*path, token)) for value, token in ranked]

    pool = children_of((), 0.0)
    beams = list(pool)
    for _ in range(1, shape.depth):
        level = [child for score, path in beams for child in children_of(path, score)]
        places = best([(score, place) for place, (score, _) in enumerate(level)], shape.top_k)
        beams = [level[place] for _, place in places]
        pool += level
    places = sorted(place for _, place in best([(s, place) for place, (s, _) in enumerate(pool)], shape.nodes - 1))
    return [pool[place][1] for place in places]


def paths_of(tree):
    paths = [()]
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


def grow(vocabulary, seed, shape, coarse=4):
    scores = PathScores(vocabulary, seed, coarse)
    return build_tree(scores.of(()), scores.expand, shape), scores


@settings(max_examples=40, deadline=None)
@given(
    vocabulary=st.integers(2, 20),
    seed=st.integers(0, 10_000),
    shape=st.builds(TreeShape, nodes=st.integers(2, 40), depth=st.integers(1, 5), top_k=st.integers(1, 6)),
)
def test_tree_equals_plain_python(vocabulary, seed, shape):
    tree, scores = grow(vocabulary, seed, shape)
    assert paths_of(tree) == reference_tree(scores, shape)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.builds(TreeShape, nodes=st.integers(2, 60), depth=st.integers(1, 6), top_k=st.integers(1, 10)),
)
def test_tree_is_closed_under_parents_and_within_its_shape(seed, shape):
    tree, _ = grow(16, seed, shape)
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths) <= shape.nodes - 1
    assert {path[:-1] for path in paths} <= {(), *paths}
    assert max(map(len, paths)) <= shape.depth
    assert all(parent <= node for node, parent in enumerate(tree.parents.tolist()))


def test_full_tree_has_as_many_nodes_as_asked_for():
    tree, _ = grow(64, 3, TreeShape(nodes=60, depth=6, top_k=10))
    assert len(tree.tokens) == 59


def test_closure_holds_where_a_child_seems_likelier_than_its_parent():
    # Rounded log-probabilities can exceed 0; the child must not be kept without its parent then.
    def expand(beams):
        return torch.full((len(beams.tokens), 4), 0.5)

    first = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    tree = build_tree(first, expand, TreeShape(nodes=6, depth=3, top_k=2))
    paths = paths_of(tree)
    assert {path[:-1] for path in paths} <= {(), *paths}


def test_ties_break_on_the_lower_index():
    tree = build_tree(torch.zeros(8), lambda beams: torch.zeros(len(beams.tokens), 8), TreeShape(6, 3, 3))
    assert paths_of(tree) == [(0,), (1,), (2,), (0, 0), (0, 1)]


def test_same_scores_give_the_same_tree():
    trees = [grow(20, 7, TreeShape(30, 5, 8))[0] for _ in range(3)]
    for tree in trees[1:]:
        assert torch.equal(tree.tokens, trees[0].tokens)
        assert torch.equal(tree.parents, trees[0].parents)


def test_siblings_come_likeliest_first():
    tree, scores = grow(32, 5, TreeShape(40, 4, 6), coarse=7)
    paths = paths_of(tree)
    for before, after in itertools.pairwise(paths):
        if before[:-1] == after[:-1]:
            values = scores.of(before[:-1])
            assert values[before[-1]] >= values[after[-1]]


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=30), data=st.data())
def test_stable_topk_equals_a_stable_sort(values, data):
    row = torch.tensor([values, values[::-1]], dtype=torch.float32)
    k = data.draw(st.integers(1, len(values)))
    best, indices = stable_topk(row, k)
    expected = row.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(best, expected.values[:, :k])
    assert torch.equal(indices, expected.indices[:, :k])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), nodes=st.integers(1, 40))
def test_nodes_see_themselves_and_their_ancestors(data, nodes):
    parents = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, nodes)]
    mask = ancestor_mask(torch.tensor(parents))
    for node in range(nodes):
        seen, climber = set(), node
        while climber >= 0:
            seen.add(climber)
            climber = parents[climber]
        assert set(mask[node].nonzero().flatten().tolist()) == seen


def test_a_chain_is_as_deep_as_its_nodes_and_one_wide():
    shape = shape_of(ShapeName(6, chain=True), depth=3, top_k=10)
    assert shape == TreeShape(nodes=6, depth=5, top_k=1)
    tree, scores = grow(20, 3, shape)
    assert tree.parents.tolist() == [0, 1, 2, 3, 4]
    path = ()
    for token in tree.tokens.tolist():
        assert token == scores.of(path).argmax()
        path += (token,)
    assert shape_of(ShapeName(7), depth=6, top_k=10) == TreeShape(7, 6, 10)
    with pytest.raises(UserError, match="depth: 6 is more than a tree of 6 nodes can hold below its root"):
        shape_of(ShapeName(6), depth=6, top_k=10)


@pytest.mark.parametrize("depth", [1, 2])
def test_head_runs_once_a_level(depth):
    calls = []

    def expand(beams):
        calls.append(len(beams.tokens))
        return torch.zeros(len(beams.tokens), 5)

    build_tree(torch.zeros(5), expand, TreeShape(10, depth, 3))
    assert calls == [3] * (depth - 1)
