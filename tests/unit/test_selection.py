import dataclasses
import importlib
import itertools
import sys

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from speclayers import specs
from speclayers.config import SelectionConfig, SelectorConfig
from speclayers.errors import UserError
from speclayers.geometry.entropy import matrix_entropy, set_entropy, unit_trace_gram
from speclayers.reading import parse_study
from speclayers.selection import selectors
from speclayers.selection.evidence import SetEntropy
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.selector import find_selector, known_selectors, requests
from tests.unit.test_config import ROOT, merged


def geometry(n_layers=8, seed=0, shannon=True):
    """Random layers that drift, with exact entropies and CKA."""
    generator = np.random.default_rng(seed)
    states = [generator.standard_normal((40, 10))]
    for _ in range(n_layers):
        mixed = states[-1] @ generator.standard_normal((10, 10)) * np.arange(1, 11) ** -generator.uniform(0.2, 1)
        states.append(states[-1] / np.linalg.norm(states[-1]) + mixed / np.linalg.norm(mixed))
    grams = [unit_trace_gram(s, layer) for layer, s in enumerate(states)]
    flat = np.stack([g.ravel() for g in grams])
    products = flat @ flat.T
    norms = np.sqrt(np.diagonal(products))
    entropy = np.array([set_entropy([g]) for g in grams])
    return LayerGeometry(
        entropy=entropy,
        prompt_entropy=entropy[::-1].copy(),
        cka=products / np.outer(norms, norms),
        gram=products,
        shannon=SetEntropy(grams) if shannon else None,
        lens=np.array([matrix_entropy(s, alpha=3) for s in states]),
    )


def flat_geometry(entropy, cka=None):
    """Geometry with given S(l) and CKA, E(S) the sum of S(l) less the similarities."""
    entropy = np.asarray(entropy, float)
    cka = np.eye(len(entropy)) if cka is None else np.asarray(cka, float)

    def shannon(layers):
        pairs = itertools.combinations(layers, 2)
        return float(sum(entropy[layer] for layer in layers) - sum(cka[a, b] for a, b in pairs))

    return LayerGeometry(entropy, entropy[::-1].copy(), cka, np.eye(len(entropy)), shannon)


def choose(name, k, on, options=None, seed=0):
    config = SelectorConfig(name=name, k=[k], seeds=[seed], options=options or {})
    (request,) = requests([config], on.n_layers)
    return request.choose(on)


def layers_of(name, k, on, options=None, seed=0):
    (choice,) = choose(name, k, on, options, seed)
    return choice.layers


DATA_DRIVEN = [name for name in known_selectors() if find_selector(name).measures]


def test_every_selector_of_the_method_is_there():
    assert set(known_selectors()) == {
        *("eagle2", "eagle3", "uniform", "random", "max_entropy", "min_entropy", "elsi", "elsi_c", "entropy_cka"),
        *("product", "cka_farthest", "beam", "exhaustive", "per_segment", "pinned", "lens"),
    }


@pytest.mark.parametrize("name", DATA_DRIVEN)
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_choices_are_sorted_distinct_candidates_scored_by_joint_entropy(name, k):
    on = geometry()
    (choice,) = choose(name, k, on)
    assert list(choice.layers) == sorted(set(choice.layers))
    assert set(choice.layers) <= set(range(1, 9))
    assert len(choice.layers) == k or "warning" in choice.reason
    assert choice.score == on.set_entropy(choice.layers)
    assert choice.layers not in [other.layers for other in choice.runners_up]
    scores = [other.score for other in choice.runners_up]
    assert scores == sorted(scores, reverse=True)
    assert choice.reason


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.integers(3, 7), st.data(), st.booleans())
def test_every_selector_returns_k_distinct_sorted_layers_of_any_geometry_and_always_the_same(seed, n, data, whole):
    on = geometry(n, seed, shannon=whole)
    k = data.draw(st.integers(1, n))
    for name in known_selectors():
        size = min(find_selector(name).sizes or {k})
        options = {"sets": [list(range(n - size + 1, n + 1))]} if name == "pinned" else {}
        (choice,) = choose(name, size, on, options, seed)
        assert list(choice.layers) == sorted(set(choice.layers)), name
        assert set(choice.layers) <= set(range(1, n + 1)), name
        assert len(choice.layers) == size or "warning" in choice.reason, name
        assert choice == choose(name, size, on, options, seed)[0], name


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_no_selector_exceeds_the_best_of_all_sets(seed, k):
    on = geometry(6, seed)
    (best,) = choose("exhaustive", k, on, {"rescored": 20})
    for name in DATA_DRIVEN:
        (choice,) = choose(name, k, on)
        if len(choice.layers) == k:
            assert choice.score <= best.score + 1e-12, name


@pytest.mark.parametrize("name", [name for name in known_selectors() if find_selector(name).sizes is None])
def test_all_layers_can_be_asked_for_and_one_more_cannot(name):
    on, n = geometry(5), 5
    options = {"sets": [[1, 2, 3, 4, 5]]} if name == "pinned" else {}
    (choice,) = choose(name, n, on, options)
    assert choice.layers == (1, 2, 3, 4, 5) or "warning" in choice.reason
    with pytest.raises(UserError, match=rf"selectors\.{name}\.k: 6 is more than the model's 5 layers"):
        choose(name, n + 1, on, options)


@pytest.mark.parametrize("name", known_selectors())
def test_the_same_input_gives_the_same_choice(name):
    k = {"eagle2": 1}.get(name, 3)
    options = {"sets": [[1, 2, 3]]} if name == "pinned" else {}
    assert choose(name, k, geometry(), options) == choose(name, k, geometry(), options)


@pytest.mark.parametrize(("n_layers", "expected"), [(36, (2, 18, 33)), (32, (2, 16, 29)), (30, (2, 15, 27))])
def test_eagle3_is_the_hard_coded_triple(n_layers, expected):
    assert layers_of("eagle3", 3, flat_geometry(np.ones(n_layers + 1))) == expected
    assert layers_of("eagle2", 1, flat_geometry(np.ones(n_layers + 1))) == (n_layers,)


@pytest.mark.parametrize(("n_layers", "expected"), [(5, (2,)), (4, (1, 2)), (3, (1, 2))])
def test_eagle3_on_shallow_models_clamps_and_warns(n_layers, expected):
    (choice,) = choose("eagle3", 3, flat_geometry(np.ones(n_layers + 1)))
    assert choice.layers == expected
    assert "warning" in choice.reason


def test_uniform_takes_the_middles_of_equal_parts():
    assert layers_of("uniform", 3, flat_geometry(np.ones(31))) == (5, 15, 25)
    assert layers_of("uniform", 4, flat_geometry(np.ones(5))) == (1, 2, 3, 4)


def test_random_depends_on_the_seed_only():
    on = geometry()
    assert layers_of("random", 3, on, seed=5) == layers_of("random", 3, on, seed=5)
    assert len({layers_of("random", 3, on, seed=seed) for seed in range(20)}) > 5


def test_highest_and_lowest_entropy_take_the_lower_layer_on_ties():
    on = flat_geometry([9, 1, 3, 3, 3, 0.5])
    assert layers_of("max_entropy", 2, on) == (2, 3)
    assert layers_of("min_entropy", 2, on) == (1, 5)


def test_embedding_and_per_prompt_entropy_are_options():
    on = flat_geometry([9, 1, 3, 4, 2])  # per prompt: 2 4 3 1 9
    assert layers_of("max_entropy", 1, on) == (3,)
    assert layers_of("max_entropy", 1, on, {"embedding": True}) == (0,)
    assert layers_of("max_entropy", 1, on, {"per_prompt": True}) == (4,)
    assert layers_of("elsi", 1, on, {"per_prompt": True}) == (4,)


def test_elsi_of_one_layer_is_that_of_highest_entropy():
    on = geometry()
    assert layers_of("elsi", 1, on) == (int(np.argmax(on.entropy[1:])) + 1,)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 3))
def test_no_single_swap_improves_elsi_and_it_is_close_to_the_best_of_all(seed, k):
    on = geometry(6, seed)
    found = layers_of("elsi", k, on)
    scores = {s: on.set_entropy(s) for s in itertools.combinations(range(1, 7), k)}
    neighbours = [s for s in scores if len(set(s) & set(found)) == k - 1]
    assert all(scores[s] <= scores[found] for s in neighbours)
    assert scores[found] >= max(scores.values()) - 0.1


def test_elsi_swaps_the_first_layer_away_if_that_pays():
    # layer 1 is highest alone but similar to everything; 2 and 3 are better together
    cka = np.array([[1, 0, 0, 0], [0, 1, 0.9, 0.9], [0, 0.9, 1, 0.0], [0, 0.9, 0.0, 1]])
    (choice,) = choose("elsi", 2, flat_geometry([0, 1.2, 1.1, 1.0], cka))
    assert choice.layers == (2, 3)
    assert [step.action for step in choice.trace] == ["start", "add 2", "swap"]


def test_elsi_adds_even_if_entropy_falls():
    assert len(layers_of("elsi", 3, flat_geometry([0, 5, -1, -2, -3]))) == 3


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.floats(0.3, 0.95))
def test_elsi_c_keeps_the_limit_wherever_one_pair_can(seed, limit):
    on = geometry(7, seed)
    (choice,) = choose("elsi_c", 2, on, {"max_similarity": limit})
    a, b = choice.layers
    if any(on.cka[int(np.argmax(on.entropy[1:])) + 1, layer] <= limit for layer in range(1, 8)):
        assert on.cka[a, b] <= limit
    for layer in range(1, 8):
        for kept in (a, b):
            pair = tuple(sorted({kept, layer}))
            if len(pair) == 2 and on.cka[pair] <= limit:
                assert on.set_entropy(pair) <= choice.score


def test_elsi_c_lets_the_least_similar_join_when_none_qualifies():
    cka = np.full((4, 4), 0.99)
    cka[1, 3] = cka[3, 1] = 0.95
    np.fill_diagonal(cka, 1)
    (choice,) = choose("elsi_c", 2, flat_geometry([0, 5, 4, 3], cka))
    assert choice.layers == (1, 3)
    assert "warning: no other layer was within 0.9, so the least similar joined, at CKA 0.950" in choice.reason
    (within,) = choose("elsi_c", 2, flat_geometry([0, 5, 4, 3], cka), {"max_similarity": 0.95})
    assert within.layers == (1, 3)
    assert "warning" not in within.reason


def test_entropy_cka_walks_by_falling_entropy_and_may_end_short():
    cka = np.eye(5)
    cka[1, 2] = cka[2, 1] = 0.95
    on = flat_geometry([0, 5, 4, 3, 2], cka)
    (choice,) = choose("entropy_cka", 3, on)
    assert choice.layers == (1, 3, 4)
    assert [step.action for step in choice.trace] == ["start", "reject 2", "accept 3", "accept 4"]
    (short,) = choose("entropy_cka", 4, on)
    assert short.layers == (1, 3, 4)
    assert "only 3 of 4 layers" in short.reason


def test_product_and_farthest_first_weigh_similarity():
    cka = np.eye(4)
    cka[1, 2] = cka[2, 1] = 0.5
    cka[1, 3] = cka[3, 1] = 0.4
    on = flat_geometry([0, 5, 4, 1], cka)
    assert layers_of("product", 2, on) == (1, 2)  # 4 · 0.5 > 1 · 0.6
    assert layers_of("cka_farthest", 2, on) == (1, 3)


def test_exhaustive_is_the_best_of_all_and_a_wide_beam_agrees():
    on = geometry(7, 3)
    best = max(itertools.combinations(range(1, 8), 3), key=on.set_entropy)
    assert layers_of("exhaustive", 3, on) == best
    assert layers_of("beam", 3, on, {"max_similarity": 1.0, "width": 100}) == best


def test_exhaustive_ranks_by_order_two_before_it_rescores():
    on = geometry(7, 4)
    half = geometry(7, 4, shannon=False)
    best = max(itertools.combinations(range(1, 8), 2), key=half.set_entropy)
    assert layers_of("exhaustive", 2, on, {"rescored": 1}) == best == layers_of("exhaustive", 2, half)


def test_exhaustive_refuses_too_many_sets():
    with pytest.raises(UserError, match=r"exhaustive\.k: 12 of 36 layers make \d+ sets"):
        choose("exhaustive", 12, flat_geometry(np.ones(37)))


def test_beam_keeps_the_limit_or_takes_the_least_similar():
    cka = np.full((4, 4), 0.95)
    cka[2, 3] = cka[3, 2] = 0.5
    np.fill_diagonal(cka, 1)
    assert layers_of("beam", 2, flat_geometry([0, 9, 2, 1], cka)) == (2, 3)
    cka[2, 3] = cka[3, 2] = 0.92
    (choice,) = choose("beam", 2, flat_geometry([0, 9, 2, 1], cka))
    assert choice.layers in {(1, 2), (1, 3)}
    assert "the least similar joined, at CKA 0.950" in choice.reason


def test_per_segment_takes_one_layer_of_each():
    assert layers_of("per_segment", 3, flat_geometry([0, 1, 2, 9, 8, 3, 4])) == (2, 3, 6)


def test_pinned_returns_each_set_of_this_size():
    on = flat_geometry(np.ones(37))
    options = {"sets": [[28], [5, 23, 35], [29], [24, 6, 36]]}
    assert [c.layers for c in choose("pinned", 1, on, options)] == [(28,), (29,)]
    assert [c.layers for c in choose("pinned", 3, on, options)] == [(5, 23, 35), (6, 24, 36)]


def test_pinned_layers_beyond_the_model_are_refused_or_left_out():
    on = flat_geometry(np.ones(31))
    with pytest.raises(UserError, match=r"pinned\.options\.sets: layer 35 of \[5, 23, 35\] is outside 0 to 30"):
        choose("pinned", 3, on, {"sets": [[5, 23, 35]]})
    kept = choose("pinned", 3, on, {"sets": [[5, 23, 35], [2, 3, 4]], "skip_beyond": True})
    assert [c.layers for c in kept] == [(2, 3, 4)]


def test_pinned_without_a_set_of_this_size_is_refused():
    with pytest.raises(UserError, match="no set has 2 layers"):
        choose("pinned", 2, flat_geometry(np.ones(9)), {"sets": [[1]]})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "elsy"}, "there is no selector 'elsy'; did you mean 'elsi'"),
        ({"name": "qqq"}, "there is no selector 'qqq'; known are beam"),
        ({"name": "eagle3", "k": [2]}, r"selectors\.eagle3\.k: found 2, but this selector is defined for k = 3"),
        ({"name": "elsi", "k": [9]}, r"selectors\.elsi\.k: 9 is more than the model's 8 layers"),
        ({"name": "elsi", "options": {"alpha": 2}}, r"selectors\.elsi\.options\.alpha: unknown option; known are per_"),
        (
            {"name": "elsi_c", "options": {"max_similarty": 0.5}},
            r"options\.max_similarty: unknown option; known are .*; did you mean 'max_similarity'\?",
        ),
        ({"name": "eagle2", "k": [1], "options": {"x": 2}}, r"eagle2\.options\.x: unknown option; known are none"),
        ({"name": "elsi_c", "options": {"max_similarity": 3}}, r"elsi_c\.options\.max_similarity: .*, found 3"),
        ({"name": "elsi", "seeds": [0, 1]}, r"selectors\.elsi\.seeds: found \[0, 1\], but this selector is not random"),
        ({"name": "pinned", "k": [1]}, r"selectors\.pinned\.options\.sets: Field required"),
        ({"name": "pinned", "options": {"sets": [[1, 1, 2]]}}, "names a layer twice"),
    ],
)
def test_wrong_settings_are_refused_with_the_key(config, message):
    with pytest.raises(UserError, match=message):
        requests([SelectorConfig(**config)], 8)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def choose(:\n", r"broken\.py:1: .*; mend the selector's file"),
        ("from speclayers.selection.search import nothing\n", r"broken\.py: cannot import name 'nothing'.*mend"),
        ("choose = 1\n", r"broken\.py: found no SELECTOR, expected SELECTOR = Selector"),
        ("SELECTOR = 1\n", r"broken\.py: found no SELECTOR"),
    ],
)
def test_a_broken_file_of_a_selector_is_named(tmp_path, monkeypatch, code, message):
    (tmp_path / "broken.py").write_text(code)
    monkeypatch.setattr(selectors, "__path__", [str(tmp_path)])
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, f"{selectors.__name__}.broken", raising=False)
    with pytest.raises(UserError, match=message) as error:
        find_selector("broken")
    assert "\n" not in str(error.value)
    sys.modules.pop(f"{selectors.__name__}.broken", None)


def test_default_study_fits_a_model_of_moderate_depth():
    assert len(requests(SelectionConfig().selectors, 12)) == 7


def test_the_paper_study_puts_the_papers_own_sets_beside_the_computed_ones():
    paper = parse_study(merged(yaml.safe_load((ROOT / "studies/paper.yaml").read_text())))
    on = geometry(36)
    found = {}
    for request in requests(specs.selection(paper, "qwen3-4b").selection.selectors, 36):
        for choice in request.choose(on):
            found.setdefault((request.config.name, request.k), set()).add(choice.layers)
    assert found["pinned", 1] == {(28,), (29,)}
    assert found["pinned", 3] == {(5, 23, 35), (6, 24, 36)}
    assert found["eagle3", 3] == {(2, 18, 33)}
    assert found["eagle2", 1] == {(36,)}
    for computed in ("elsi", "exhaustive", "lens"):
        assert {len(found[computed, k]) for k in (1, 3)} == {1}
    assert len(found["random", 3]) == 5
    assert "pinned" not in {
        r.config.name for r in requests(specs.selection(paper, "llama-3.1-8b").selection.selectors, 32)
    }


def test_lens_ranks_by_the_vocabulary_and_needs_tokens_that_were_read_out():
    on = flat_geometry([0, 5, 4, 3])
    with pytest.raises(UserError, match=r"no token was read out; raise geometry\.lens_tokens"):
        choose("lens", 1, on)
    read = dataclasses.replace(on, lens=np.array([9.0, 1.0, 3.0, 2.0]))
    assert layers_of("lens", 2, read) == (2, 3)


def test_unknown_similarity_stops_only_the_selectors_that_need_it():
    cka = np.eye(4)
    cka[3] = cka[:, 3] = np.nan
    on = flat_geometry([0, 3, 2, 1], cka)
    assert layers_of("max_entropy", 1, on) == (1,)
    assert not on.known()
    with pytest.raises(UserError, match="layer 3 has no debiased CKA"):
        choose("cka_farthest", 2, on)
