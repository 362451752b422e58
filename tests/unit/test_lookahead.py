"""Lookahead's window is the published one, its rows see what their tokens follow, and it changes nothing."""

from functools import cache

import pytest
import torch

from speclayers.config import RivalConfig
from speclayers.drafting.lookahead import LookaheadDrafter, NgramPool, merged
from speclayers.drafting.rival import build_rival
from speclayers.errors import UserError
from speclayers.names import RivalName
from speclayers.reading import parse_study
from tests.unit.test_loop import (
    PROMPT,
    SMALL,
    VOCABULARY,
    WARM,
    decode,
    endings_p_value,
    exact_endings,
    generate,
    with_stop,
)

SIZES = [(3, 4, 2), (5, 7, 7), (6, 2, 3), (3, 1, 1)]
"""n, window and guesses: of the last but one the filling window is larger than the full one."""


def drafter_of(ngram, window, guesses, seed=0, pool_text=True):
    return LookaheadDrafter("lookahead", ngram, window, guesses, seed, pool_text)


def test_the_pool_keeps_the_latest_continuations_of_a_token():
    pool = NgramPool(2)
    for ngram in ([1, 2, 3], [1, 4, 5], [7, 2, 3], [1, 2, 3], [1, 6, 6]):
        pool.add(ngram)
    assert pool.after(1) == [(6, 6), (2, 3)]
    assert pool.after(7) == [(2, 3)]
    assert pool.after(2) == []


def test_paths_that_begin_alike_share_their_nodes():
    tree = merged(9, [(1, 2, 3), (1, 2, 4), (5, 2, 3), (1, 2, 3)])
    assert tree.tokens.tolist() == [9, 1, 2, 3, 4, 5, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2, 0, 5, 6]
    assert merged(9, []).tokens.tolist() == [9]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("size", SIZES)
def test_greedy_answers_are_plain_decodings(tiny_target, family, size):
    target = tiny_target(family, vocabulary=VOCABULARY)
    assert decode(target, drafter_of(*size), budget=30).tokens == generate(target, PROMPT, 30)


class Watched(LookaheadDrafter):
    """Keeps the text of every row of its window: what the row's token follows, taken from the window's tokens."""

    def start(self, cache):
        super().start(cache)
        self.texts, self.told, self.most = [], [], 0

    def propose(self):
        proposal = super().propose()
        first, *later = self._levels
        *text, root = self._text
        assert first[0] == root
        self.texts = [[*text, *first[: column + 1]] for column in range(1, len(first))]
        for level in range(1, len(self._levels)):
            for column in range(len(first)):
                own = [tokens[column] for tokens in later[:level]]
                self.texts.append([*text, *first[: column + 1], *own])
        self.most = max(self.most, len(proposal.tokens) + len(proposal.extra.tokens))
        return proposal

    def observe(self, verified):
        if verified.extra is not None:
            self.told += zip(self.texts, verified.extra, strict=True)
        super().observe(verified)


@pytest.mark.parametrize("size", SIZES)
def test_logits_of_every_row_are_those_of_its_own_text(tiny_target, size):
    target = tiny_target(vocabulary=VOCABULARY)
    drafter = Watched("lookahead", *size, seed=3)
    decode(target, drafter, budget=11)
    assert len(drafter.told) > 4
    for text, logits in drafter.told:
        torch.testing.assert_close(logits, target.model(torch.tensor([text])).logits[0, -1], rtol=1e-4, atol=1e-4)
    assert drafter.most <= drafter.rows


def published(target, prompt, budget, ngram, window, guesses, initial):
    """Tokens of each pass, as the published greedy search finds them; every row is a forward pass of its own.

    Written after its code: the root is none of the window's first level, the pool a list of tuples a token. Its
    n-grams of the text are taken as its sampling search takes them: the greedy one repeats the last token.
    """

    @cache
    def best_after(text):
        return int(target.model(torch.tensor([text])).logits[0, -1].argmax())

    def best(text):
        return best_after(tuple(text))

    pool, text, levels = {}, list(prompt), [list(initial)]

    def keep(key, rest):
        known = pool.setdefault(key, [])
        if rest in known:
            known.remove(rest)
        pool[key] = [*known, rest][-guesses:]

    def keep_text(end):
        if end >= ngram:
            keep(text[end - ngram], tuple(text[end - ngram + 1 : end]))

    for end in range(ngram, len(prompt) + 1):
        keep_text(end)
    text.append(best(text))
    keep_text(len(text))
    passes = []
    while len(text) < len(prompt) + budget:
        root = text[-1]
        first = [root, *levels[0]]
        columns = range(1, len(first)) if len(levels) == 1 else range(len(levels[-1]))
        results = [best([*text[:-1], *first[: c + 1], *(level[c] for level in levels[1:])]) for c in columns]
        accepted = [best(text)]
        for guess in pool.get(root, []):
            correct = [best([*text, *guess[:length]]) for length in range(ngram)]
            hits = next((i for i in range(ngram - 1) if guess[i] != correct[i]), ngram - 1)
            if hits + 1 > len(accepted):
                accepted = correct[: hits + 1]
        if len(levels) == 1:
            levels = [levels[0][1:], results]
        elif len(levels) < ngram - 1:
            levels = [*(level[1:] for level in levels), results[1:]]
        else:
            keep(root, (*(level[0] for level in levels[1:]), results[0]))
            for i in range(1, window):
                keep(levels[0][i - 1], (*(level[i] for level in levels[1:]), results[i]))
            levels = [levels[1][1:], *levels[2:], results]
        for token in accepted:
            text.append(token)
            keep_text(len(text))
        passes.append(len(accepted))
    return passes


@pytest.mark.parametrize("size", [(3, 4, 2), (5, 3, 4), (4, 6, 3)])
def test_what_is_accepted_is_what_the_published_search_accepts(tiny_target, size):
    target = with_stop(tiny_target(vocabulary=SMALL, layers=3), [])
    ngram, window, _ = size
    places = torch.randint(len(PROMPT), (window + ngram - 2,), generator=torch.Generator().manual_seed(5)).tolist()
    prompt = [token % SMALL for token in PROMPT]
    initial = [prompt[place] for place in places[1:]]
    expected = published(target, prompt, 40, *size, initial)
    cycles = decode(target, drafter_of(*size, seed=5), 40, prompt).cycles
    assert [cycle.accepted + 1 for cycle in cycles] == expected
    assert max(expected) == ngram, "whole n-grams are accepted, too"


def test_sampled_answers_are_distributed_as_the_targets(tiny_target):
    target = with_stop(tiny_target(vocabulary=SMALL, layers=1), [])
    exact = exact_endings(target, [4, 7, 2], WARM)
    assert endings_p_value(target, exact, WARM, 250, drafter_of(3, 5, 6)) > 0.01


def test_every_turn_begins_anew_and_the_seed_decides_where(tiny_target):
    target, drafter = tiny_target(vocabulary=VOCABULARY), drafter_of(4, 5, 3, pool_text=False)
    other = PROMPT[::-1]
    first = decode(target, drafter, prompt=other)
    decode(target, drafter)
    assert decode(target, drafter, prompt=other) == first
    windows = []
    for seed in (0, 0, 1):
        watched = Watched("lookahead", 4, 5, 3, seed)
        decode(target, watched, 2)
        windows.append(watched.texts)
    assert windows[0] == windows[1] != windows[2]


def built(target, length=4, nodes=29, seed=0, **options):
    config = RivalConfig(name="lookahead", draft_length=length, tree_nodes=nodes, options=options)
    return build_rival(config, target, RivalName("lookahead", None, seed), {})


def test_the_config_says_n_and_guesses(tiny_target):
    drafter = built(tiny_target(), length=4, nodes=29)
    assert (drafter.nodes, drafter.rows, drafter.depth) == (29, 29 + 4 * 7 - 1, 9)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"window": 0}, r"rivals.lookahead.options.window: .* greater than or equal to 1, found 0"),
        ({"length": 1, "nodes": 2}, r"rivals.lookahead.draft_length: is 1, so that n-grams have 2 tokens; expected 2"),
        ({"nodes": 30}, r"rivals.lookahead.tree_nodes: is 30, but it drafts 29 nodes at most; expected 29"),
        ({"seed": None}, r"rivals.lookahead.seeds: is missing"),
        ({"guesses": 7}, r"rivals.lookahead.options.guesses: unknown option; known are window, pool_text"),
    ],
)
def test_what_cannot_be_built_is_told(tiny_target, wrong, told):
    with pytest.raises(UserError, match=told):
        built(tiny_target(), **wrong)


def test_a_tree_too_small_for_one_n_gram_is_refused():
    rival = {"name": "lookahead", "draft_length": 4, "tree_nodes": 4}
    with pytest.raises(UserError, match=r"rivals.0: tree_nodes: 4 nodes hold no path of draft_length 4 and the root"):
        parse_study(
            {
                "study": {"models": ["m"]},
                "models": {"m": {"source": {"kind": "folder", "path": "x"}}},
                "rivals": [rival],
            }
        )


def test_a_prompt_shorter_than_an_n_gram_is_refused(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    assert decode(target, drafter_of(7, 2, 1), 4).tokens
    with pytest.raises(
        UserError, match="lookahead: n-grams of 8 tokens are longer than the prompt of 7; lower draft_l"
    ):
        decode(target, drafter_of(8, 2, 1), 4)
