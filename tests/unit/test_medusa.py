"""Medusa's heads learn what stands behind the next token, their tree is the best one, and nothing decoded changes."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from speclayers.config import DraftConfig, RivalConfig, Runtime
from speclayers.decoding.baseline import decode_questions
from speclayers.decoding.shards import Shards, to_frame
from speclayers.drafting.features import OnlineFeatures
from speclayers.drafting.medusa import MedusaDrafter, sparse_tree
from speclayers.drafting.medusa_heads import load_medusa, save_medusa
from speclayers.drafting.medusa_training import new_medusa_trainer
from speclayers.drafting.rival import build_rival
from speclayers.errors import UserError
from speclayers.files import read_json, write_json
from speclayers.names import RivalName
from speclayers.planning.fanout import trained_rivals
from speclayers.planning.identity import Identities
from speclayers.reading import parse_study
from speclayers.specs import RivalSpec, TrainSpec
from speclayers.tables import BASELINE, CORPUS, CYCLES, TRAINING, TURNS, read_table, write_table
from tests.drafts import ORIGIN, SETTINGS, make_corpus, weights
from tests.heads import make_medusa
from tests.unit.test_acceptance import CHECKED, QUESTIONS, SPEC, run_script
from tests.unit.test_fingerprint import ROOT
from tests.unit.test_loop import (
    PROMPT,
    SMALL,
    VOCABULARY,
    WARM,
    decode,
    endings_p_value,
    exact_endings,
    fresh_states,
    generate,
    with_stop,
)

NAME = RivalName("medusa", None, 0)
HELD = {"held_out": 0.3, "evaluate_every": 4}


def trainer_of(setting, checkpoints, name=NAME, **settings):
    target, corpus, source = setting
    checkpoints.mkdir(exist_ok=True)
    draft = DraftConfig(**{**SETTINGS, **HELD, **settings})
    return new_medusa_trainer(name, target, corpus, source, draft, "fingerprint", checkpoints)


def trained(setting, checkpoints, **settings):
    trainer = trainer_of(setting, checkpoints, **settings)
    trainer.run()
    trainer.calibrate()
    return trainer


# ---------------------------------------------------------------- heads


@pytest.mark.parametrize("family", ["llama", "gpt2", "cohere", "granite"])
def test_a_new_head_is_the_targets_own_lm_head(tiny_target, tmp_path, family):
    target = tiny_target(family)
    corpus = make_corpus(6)
    heads = trainer_of((target, corpus, OnlineFeatures(target, corpus)), tmp_path / "work").head
    states = fresh_states(target, [target.n_layers], PROMPT)[target.n_layers]
    logits = target.model(torch.tensor([PROMPT])).logits[0][:, heads.draft_ids]
    for output in heads(states):
        torch.testing.assert_close(heads.logits(output), logits, rtol=1e-4, atol=1e-4)
    assert heads.accuracies.isnan().all()
    assert not [name for name, _ in heads.named_parameters() if "lm_head" in name]


def test_the_loss_is_that_of_the_tokens_behind_the_next_one(setting, tmp_path):
    """Head i, reading the state at p, is compared with what the target says behind position p + 1 + i."""
    target, corpus, _ = setting
    trainer = trainer_of(setting, tmp_path / "work", vocabulary=256)
    heads = trainer.head
    heads.load_state_dict(make_medusa(target, heads=3, draft_vocabulary=256).state_dict())
    losses = [[], [], []]
    rows = [place for place in range(len(corpus)) if place in {s.place for s in trainer._held_out._samples}]
    for ids, start in zip(corpus["input_ids"].iloc[rows], corpus["response_start"].iloc[rows], strict=True):
        ids = ids.tolist()
        states = fresh_states(target, [target.n_layers], ids)[target.n_layers]
        with torch.no_grad():
            distribution = target.model(torch.tensor([ids])).logits[0].softmax(-1)
            for head, output in enumerate(heads(states)):
                scores = heads.logits(output).log_softmax(-1)
                positions = [
                    p for p in range(start - 1, len(ids) - 1 - head) if ids[p + 1 + head] not in target.stop_ids
                ]
                losses[head] += [-(distribution[p + 1 + head] * scores[p]).sum() for p in positions]
    expected = [float(torch.stack(found).mean()) for found in losses]
    found = [metrics.loss for metrics in trainer.evaluate(trainer._held_out)]
    assert found == pytest.approx(expected, rel=1e-4)


def test_heads_learn(tiny_target, tmp_path):
    target, corpus = tiny_target(tied=False), make_corpus(8, response=8)
    with torch.no_grad():
        target.anatomy.lm_head.weight.mul_(8)  # a random target is otherwise so unsure that its best token is noise
    setting = target, corpus, OnlineFeatures(target, corpus)
    settings = {"vocabulary": 256, "steps": 80, "sequences_per_step": 4, "learning_rate": 1e-2, "warmup_steps": 5}
    table = trained(setting, tmp_path / "work", **settings, checkpoint_every=200, evaluate_every=200).table()
    learnt = table[table["split"] == "train"]
    first, last = learnt[learnt["step"] == 1], learnt[learnt["step"] > 75]
    assert (last.groupby("ttt_step")["accuracy"].mean() > 2 * first["accuracy"].max() + 0.1).all()


def test_accuracies_are_shares_of_right_guesses_by_rank(setting, tmp_path):
    target = setting[0]
    trainer = trained(setting, tmp_path / "work")
    heads = trainer.head
    assert heads.accuracies.shape == (3, 10)
    assert heads.accuracies[:, 0].tolist() == pytest.approx(
        [metrics.accuracy for metrics in trainer.evaluate(trainer._held_out)], abs=1e-6
    )
    right, counted = torch.zeros(10), 0
    for sample in trainer._held_out._samples:
        ids = sample.ids.tolist()
        states = fresh_states(target, [target.n_layers], ids)[target.n_layers]
        best = target.model(torch.tensor([ids])).logits[0].argmax(-1)
        order = heads.logits(heads(states)[1]).argsort(dim=-1, descending=True)
        for p in range(sample.first_slot, len(ids) - 2):
            guesses = heads.target_ids(order[p, :10])
            right += guesses == best[p + 2]
            counted += 1
    torch.testing.assert_close(heads.accuracies[1], right / counted)


def test_the_same_seed_gives_the_same_heads_and_a_killed_training_continues(setting, tmp_path):
    whole = trained(setting, tmp_path / "whole")
    halted = trainer_of(setting, tmp_path / "halted")
    halted.run(until=5)
    again = trained(setting, tmp_path / "halted")
    torch.testing.assert_close(weights(again.head), weights(whole.head), rtol=0, atol=0)
    assert again.table().equals(whole.table())
    other = trained(setting, tmp_path / "other", name=NAME._replace(seed=1))
    assert not torch.equal(other.head.blocks[0].linear.weight, whole.head.blocks[0].linear.weight)


# ---------------------------------------------------------------- the tree


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("nodes", [2, 4, 6])
def test_no_tree_of_as_many_nodes_is_expected_to_be_longer(seed, nodes):
    accuracies = torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, (3, 2)))
    every = [choice for depth in (1, 2, 3) for choice in np.ndindex(*[2] * depth)]

    def length(tree):
        return sum(np.prod([accuracies[head, rank] for head, rank in enumerate(choice)]) for choice in tree)

    closed = (t for t in combinations(every, nodes - 1) if all(len(c) == 1 or c[:-1] in t for c in t))
    found = sparse_tree(accuracies, nodes)
    assert length(found) == pytest.approx(max(map(length, closed)))
    places = [[], *map(list, found)]
    assert all(list(choice[:-1]) in places[:place] for place, choice in enumerate(found, start=1))


def test_equally_likely_nodes_keep_their_order_and_a_tree_ends_where_no_node_is_left():
    assert sparse_tree(torch.full((2, 2), 0.5), 4) == [(0,), (1,), (0, 0)]
    assert len(sparse_tree(torch.full((2, 2), 0.5), 50)) == 6


# ---------------------------------------------------------------- drafting


def test_a_proposal_holds_what_each_head_ranks(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    heads = make_medusa(target, heads=3, draft_vocabulary=32)
    texts = []

    class Watched(MedusaDrafter):
        def start(self, cache):
            super().start(cache)
            self.text = []

        def observe(self, verified):
            super().observe(verified)
            self.text[-1:] = [*verified.tokens.tolist(), verified.root]

        def propose(self):
            proposal = super().propose()
            texts.append((list(self.text), proposal))
            return proposal

    drafter = Watched(target, heads, nodes=16)
    choices = sparse_tree(heads.accuracies, 16)
    assert decode(target, drafter, 12).tokens == generate(target, PROMPT, 12)
    assert len(texts) > 5
    for (*text, root), proposal in texts:
        state = fresh_states(target, [target.n_layers], text)[target.n_layers][-1]
        order = [heads.target_ids(heads.logits(o).argsort(descending=True, stable=True)).tolist() for o in heads(state)]
        tokens, parents = proposal.tokens.tolist(), proposal.parents.tolist()
        assert (tokens[0], parents[0]) == (root, -1)
        for node, choice in enumerate(choices, start=1):
            assert tokens[node] == order[len(choice) - 1][choice[-1]]
            assert ((), *choices)[parents[node]] == choice[:-1]
        assert (proposal.forwards, proposal.layer_forwards, proposal.probabilities) == (1, 0, None)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_greedy_answers_are_plain_decodings(tiny_target, family):
    target = tiny_target(family, vocabulary=VOCABULARY)
    drafter = MedusaDrafter(target, make_medusa(target, draft_vocabulary=64), nodes=30)
    assert decode(target, drafter, 24).tokens == generate(target, PROMPT, 24)


def test_sampled_answers_are_distributed_as_the_targets(tiny_target):
    target = with_stop(tiny_target(vocabulary=SMALL, layers=1), [])
    drafter = MedusaDrafter(target, make_medusa(target, heads=2, draft_vocabulary=SMALL), nodes=12)
    exact = exact_endings(target, [4, 7, 2], WARM)
    assert endings_p_value(target, exact, WARM, 250, drafter) > 0.01


# ---------------------------------------------------------------- the workflow


def test_scripts_lead_from_corpus_to_tables(tiny_target, tmp_path, monkeypatch):
    target = tiny_target(vocabulary=160)
    folder = target.model.config._name_or_path
    corpus = tmp_path / "training.parquet"
    write_table(corpus, CORPUS, make_corpus(8, vocabulary=160), ORIGIN)
    draft = DraftConfig(**{**SETTINGS, **HELD, "ttt_steps": 2, "features": "online"})
    spec = TrainSpec(runtime=Runtime(), draft=draft).canonical()
    outputs = []
    for place in (tmp_path / "a", tmp_path / "b"):
        names = {"output": "model.safetensors", "config": "config.json", "training": "training.parquet"}
        files = {option: place / "medusa.s0" / name for option, name in names.items()}
        given = {"spec": spec, "target": folder, "corpus": corpus, "rival": "medusa.s0", "work": tmp_path / "work"}
        run_script("train_medusa.py", monkeypatch, **given, **files)
        outputs.append([path.read_bytes() for path in files.values()])
    assert outputs[0] == outputs[1]
    assert not (tmp_path / "work").exists()
    assert len(read_table(files["training"], TRAINING)) == 2 * (12 + 3)
    rows = decode_questions(target, QUESTIONS[:1], CHECKED, Shards(tmp_path / "greedy", "key"))
    baseline = tmp_path / "T0.parquet"
    write_table(baseline, BASELINE, to_frame(rows["baseline"], BASELINE), ORIGIN)
    rival = RivalConfig(name="medusa", draft_length=2, tree_nodes=12)
    tables = {"cycles": tmp_path / "cycles.parquet", "turns": tmp_path / "turns.parquet"}
    options = {"target": folder, "rival": "medusa.s0", "baseline": baseline, "temperature": 0, "work": tmp_path / "w"}
    spec = RivalSpec(decode=SPEC, rival=rival).canonical()
    run_script("measure_rival.py", monkeypatch, spec=spec, weights=files["output"], **options, **tables)
    assert read_table(tables["turns"], TURNS)["identical_to_greedy"].all()
    assert set(read_table(tables["cycles"], CYCLES)["drafted"]) == {11}


def study(*rivals, **sections):
    models = {name: {"source": {"kind": "folder", "path": "x"}} for name in ("m", "n")}
    return parse_study({"study": {"models": ["m", "n"]}, "models": models, "rivals": rivals, **sections})


def identity(stage, found):
    return Identities(found, ROOT / "scripts").identity(stage, "m")


MEDUSA = {"name": "medusa", "draft_length": 4, "tree_nodes": 30, "seeds": [0]}


def test_settings_rerun_what_uses_them_and_nothing_else():
    base = study(MEDUSA)
    stages = ("train_draft", "train_medusa.medusa", "measure_rival.medusa", "time_rival.medusa", "measure_acceptance")

    def changed(other):
        return {stage for stage in stages if identity(stage, other) != identity(stage, base)}

    medusa = set(stages[1:4])
    assert changed(study(MEDUSA, {"name": "clasp"})) == set()
    assert changed(study({**MEDUSA, "tree_nodes": 60})) == {"measure_rival.medusa", "time_rival.medusa"}
    assert changed(study({**MEDUSA, "training": {"steps": 50}})) == medusa
    assert changed(study({**MEDUSA, "draft_length": 5})) == medusa
    assert changed(study({**MEDUSA, "seeds": [0, 1], "models": ["m"]})) == set()
    assert changed(study(MEDUSA, draft={"lm_head_learning_rate": 0.01, "ttt_steps": 4})) == set(stages) - medusa
    assert changed(study(MEDUSA, draft={"held_out": 0.1})) == set(stages)
    assert identity("train_draft", base) == identity("train_draft", study())


def test_own_steps_take_the_place_of_the_heads_tokens():
    spec = Identities(study({**MEDUSA, "training": {"steps": 50}}, draft={"tokens": 900}), ROOT / "scripts")
    draft = spec.slice_of("train_medusa.medusa", "m").draft
    assert (draft.steps, draft.tokens, draft.ttt_steps, draft.learning_rate) == (50, None, 4, 1e-3)
    assert spec.slice_of("train_draft", "m").draft.tokens == 900


def test_a_studys_trainings_are_known():
    found = study(MEDUSA, {**MEDUSA, "variant": "short", "seeds": [3], "models": ["n"]}, {"name": "clasp"})
    assert list(map(str, trained_rivals(found, "m"))) == ["medusa.s0"]
    assert list(map(str, trained_rivals(found, "n"))) == ["medusa.s0", "medusa-short.s3"]


@pytest.mark.parametrize(
    ("rival", "told"),
    [
        (
            {**MEDUSA, "draft_length": 17},
            r"rivals.medusa.draft_length: 17 heads are more than the 16 steps that can be",
        ),
        ({"name": "clasp", "training": {"steps": 5}}, r"rivals.clasp.training: this drafter has nothing to train"),
    ],
)
def test_trainings_that_do_not_fit_are_told(rival, told):
    with pytest.raises(UserError, match=told):
        trained_rivals(study(rival), "m")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"held_out": 0.0}, r"draft.held_out: 0.0 holds out none of 6 sequences; medusa.s0 needs some"),
        ({"name": RivalName("medusa")}, r"rivals.medusa.seeds: is missing; the order of training is drawn"),
    ],
)
def test_what_cannot_be_trained_is_told(setting, tmp_path, settings, told):
    with pytest.raises(UserError, match=told):
        trainer_of(setting, tmp_path / "work", **settings)


def built(target, folder, length=4, nodes=20, seed=0):
    config = RivalConfig(name="medusa", draft_length=length, tree_nodes=nodes)
    files = {"weights": folder / "model.safetensors"}
    return build_rival(config, target, RivalName("medusa", None, seed), files)


def test_heads_that_cannot_draft_are_told(tiny_target, tmp_path):
    target = tiny_target(vocabulary=VOCABULARY)
    heads = make_medusa(target)
    save_medusa(tmp_path, heads)
    assert torch.equal(load_medusa(tmp_path, target).accuracies, heads.accuracies)
    assert built(target, tmp_path).nodes == 20
    with pytest.raises(UserError, match=r"holds 4 heads; rivals.medusa.draft_length asks for 5, train them again"):
        built(target, tmp_path, length=5)
    with pytest.raises(UserError, match=r"rivals.medusa.seeds: is missing"):
        built(target, tmp_path, seed=None)
    with pytest.raises(UserError, match=r"--weights: is missing; medusa.s0 needs the weights that were trained for it"):
        build_rival(RivalConfig(name="medusa", draft_length=4), target, NAME, {})
    save_medusa(tmp_path, make_medusa(target, heads=1))
    with pytest.raises(
        UserError, match=r"rivals.medusa.tree_nodes: is 20, but it drafts 11 nodes at most; expected 11"
    ):
        built(target, tmp_path, length=1)
    heads.accuracies.fill_(float("nan"))
    save_medusa(tmp_path, heads)
    with pytest.raises(UserError, match=r"medusa.s0: the heads' accuracies are not known; train them again"):
        built(target, tmp_path)
    config = read_json(tmp_path / "config.json")
    write_json(tmp_path / "config.json", {**config, "target_hash": "other", "target": "another"})
    with pytest.raises(UserError, match=r"this head was trained for another \(other\), not for llama-0"):
        built(target, tmp_path)
    write_json(tmp_path / "config.json", {**config, "heads": 0})
    with pytest.raises(UserError, match=r"is no config of Medusa heads: heads: .* greater than or equal to 1"):
        built(target, tmp_path)


def test_logits_that_are_not_finite_are_told(tiny_target):
    target = tiny_target(vocabulary=VOCABULARY)
    heads = make_medusa(target)
    heads.blocks[1].linear.bias[0] = float("nan")
    with pytest.raises(UserError, match="medusa: the heads' logits are not finite; train them again in float32"):
        decode(target, MedusaDrafter(target, heads, nodes=9))


def test_heads_follow_their_target_into_its_precision(tiny_target, tmp_path):
    target = tiny_target(vocabulary=VOCABULARY)
    save_medusa(tmp_path, make_medusa(target))
    target.model.to(torch.bfloat16)
    low = load_medusa(tmp_path, with_runtime(target, "bfloat16"))
    assert low.blocks[0].linear.weight.dtype == torch.bfloat16
    assert low.accuracies.dtype == torch.float32
    assert len(decode(with_runtime(target, "bfloat16"), MedusaDrafter(target, low, nodes=9), 6).tokens) == 6


def with_runtime(target, dtype):
    return replace(target, runtime=Runtime(dtype=dtype))
