import math

import numpy as np
import pandas as pd
import pytest
import torch

from speclayers.config import Runtime
from speclayers.corpus import activations
from speclayers.corpus.activations import dump_activations
from speclayers.errors import UserError
from speclayers.files import read_json
from speclayers.geometry.dump import open_dump, read_layer, read_lens, read_tokens
from speclayers.tables import Origin

ORIGIN = Origin("tiny", "f")


def make_corpus(samples: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(samples):
        start, length = int(rng.integers(3, 9)), int(rng.integers(4, 12))
        rows.append((f"p{i}", rng.integers(2, 200, start + length), start))
    return pd.DataFrame(rows, columns=["sample_id", "input_ids", "response_start"])


def dump(target, tmp_path, corpus=None, max_tokens=10_000, folder="a", lens_tokens=5):
    path = tmp_path / folder / "manifest.json"
    dump_activations(target, make_corpus() if corpus is None else corpus, path, ORIGIN, max_tokens, lens_tokens)
    return open_dump(path)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(activations, "PART_ROWS", 12)
    monkeypatch.setattr(activations, "BATCH_TOKENS", 40)
    monkeypatch.setattr(activations, "LOGIT_ROWS", 3)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_every_layer_equals_transformers_hidden_states(tiny_target, tmp_path, family):
    target = tiny_target(family, layers=3)
    found = dump(target, tmp_path)
    tokens = read_tokens(found.parts)
    assert len(found.parts) > 2
    for layer in range(4):
        states = read_layer(found.parts, layer)
        for row in make_corpus().itertuples():
            ids = torch.tensor(row.input_ids)[None]
            with torch.no_grad():
                output = target.model(ids, output_hidden_states=True, use_cache=False)
            mine = tokens.sample_id == row.sample_id
            positions = tokens.position[mine].to_numpy()
            assert positions.tolist() == [0, *range(row.response_start, len(row.input_ids))]
            if layer < 3:
                expected = output.hidden_states[layer][0, positions.tolist()]
                np.testing.assert_allclose(states[mine], expected, rtol=1e-4, atol=1e-5)
            else:
                logits = target.logits(torch.from_numpy(states[mine].copy()))
                torch.testing.assert_close(logits, output.logits[0, positions.tolist()], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_parts")
def test_token_columns_say_what_they_mean(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    tokens = read_tokens(dump(target, tmp_path).parts)
    for row in make_corpus().itertuples():
        mine = tokens[tokens.sample_id == row.sample_id]
        with torch.no_grad():
            log_p = torch.log_softmax(target.model(torch.tensor(row.input_ids)[None]).logits[0].double(), dim=-1)
        entropy = -(log_p.exp() * log_p).sum(-1).numpy()
        np.testing.assert_allclose(mine.predictive_entropy, entropy[mine.position], rtol=1e-5)
        following = [log_p[p, row.input_ids[p + 1]].item() for p in mine.position[:-1]]
        np.testing.assert_allclose(mine.next_logprob[:-1], following, rtol=1e-4)
        assert math.isnan(mine.next_logprob.iloc[-1])
        assert mine.token_id.tolist() == [row.input_ids[p] for p in mine.position]
        assert mine.is_response.tolist() == [p >= row.response_start for p in mine.position]
        assert mine.is_sink.tolist() == [p == 0 for p in mine.position]


def test_outliers_of_any_layer_are_sinks():
    norms = np.ones((3, 8))
    norms[1, 4], norms[2, 6] = 10.5, 9.5
    response = np.arange(8) > 0
    assert activations._outliers(norms, response).tolist() == [i == 4 for i in range(8)]


def loud(target, tokens: range, factor: float) -> None:
    """Scale the embeddings of some tokens, so that their norms are large at layer 0."""
    target.model.get_input_embeddings().weight.data[tokens.start : tokens.stop] *= factor


def loud_corpus() -> pd.DataFrame:
    """Sequences of quiet tokens, one that is loud throughout, and one with a single loud token."""
    corpus = make_corpus()
    corpus["input_ids"] = [ids % 90 + 2 for ids in corpus.input_ids]
    corpus.loc[0, "input_ids"][:] += 100
    corpus.loc[3, "input_ids"][-1] += 100
    return corpus


@pytest.mark.parametrize("part_rows", [1, 12, 40, 10_000])
def test_sinks_exceed_the_medians_of_the_whole_layer_whatever_the_parts(tiny_target, tmp_path, monkeypatch, part_rows):
    monkeypatch.setattr(activations, "PART_ROWS", part_rows)
    target = tiny_target(layers=2)
    loud(target, range(100, 200), 50)
    corpus = loud_corpus()
    found = dump(target, tmp_path, corpus)
    tokens = read_tokens(found.parts)
    expected = [
        position == 0 or ids[position] >= 100
        for ids, start in zip(corpus.input_ids, corpus.response_start, strict=True)
        for position in [0, *range(start, len(ids))]
    ]
    assert tokens.is_sink.tolist() == expected
    norms = [np.linalg.norm(read_layer(found.parts, layer), axis=1) for layer in range(3)]
    stored = pd.concat([pd.read_parquet(part, columns=["norms"]) for part in found.parts])["norms"]
    np.testing.assert_allclose(np.stack(stored), np.transpose(norms), rtol=1e-5)
    assert not list((tmp_path / "a").glob(".*"))


def test_a_dump_killed_before_its_sinks_are_flagged_continues_to_the_same_bytes(tiny_target, tmp_path, monkeypatch):
    monkeypatch.setattr(activations, "PART_ROWS", 12)
    target = tiny_target(layers=2)
    loud(target, range(100, 200), 50)
    whole = dump(target, tmp_path, loud_corpus())
    with monkeypatch.context() as patch:
        patch.setattr(activations, "_flag_sinks", lambda paths: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dump(target, tmp_path, loud_corpus(), folder="b")
    resumed = dump(target, tmp_path, loud_corpus(), folder="b")
    again = dump(target, tmp_path, loud_corpus(), folder="b")
    for one, two, three in zip(whole.parts, resumed.parts, again.parts, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()


def test_whole_sequences_until_max_tokens(tiny_target, tmp_path):
    corpus = make_corpus()
    lengths = (corpus.input_ids.map(len) - corpus.response_start).tolist()
    tokens = read_tokens(dump(tiny_target(layers=2), tmp_path, max_tokens=sum(lengths[:3]) + 1).parts)
    assert tokens.sample_id.unique().tolist() == ["p0", "p1", "p2"]
    assert int(tokens.is_response.sum()) == sum(lengths[:3])


def test_bfloat16_states_are_stored_bit_by_bit(tiny_target, tmp_path):
    target = tiny_target(layers=2, runtime=Runtime(dtype="bfloat16"))
    corpus = make_corpus(1)
    states = read_layer(dump(target, tmp_path, corpus).parts, 1)
    with torch.no_grad():
        output = target.model(torch.tensor(corpus.input_ids[0])[None], output_hidden_states=True)
    kept = [0, *range(corpus.response_start[0], len(corpus.input_ids[0]))]
    np.testing.assert_array_equal(states, output.hidden_states[1][0, kept].float())


@pytest.mark.usefixtures("small_parts")
def test_a_killed_dump_continues_to_the_same_bytes(tiny_target, tmp_path, monkeypatch):
    target = tiny_target(layers=2)
    whole = dump(target, tmp_path)
    runs = []

    def dying(*args):
        runs.append(args)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return run(*args)

    run = activations._run
    monkeypatch.setattr(activations, "_run", dying)
    with pytest.raises(KeyboardInterrupt):
        dump(target, tmp_path, folder="b")
    assert not (tmp_path / "b" / "manifest.json").exists()
    resumed = dump(target, tmp_path, folder="b")
    assert len(runs) == len(whole.parts) + 1
    for one, two in zip(whole.parts, resumed.parts, strict=True):
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_parts_of_another_corpus_are_replaced(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    dump(target, tmp_path)
    fewer = dump(target, tmp_path, make_corpus()[3:4].reset_index())
    assert read_tokens(fewer.parts).sample_id.unique().tolist() == ["p3"]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["manifest.json", "part-0000.parquet"]
    entries = read_json(tmp_path / "a" / "manifest.json")
    assert (entries["samples"], entries["dtype"], entries["layers"]) == (1, "float32", 2)


def test_non_finite_states_are_refused_by_layer_and_sample(tiny_target, tmp_path):
    target = tiny_target(layers=3)
    target.anatomy.blocks[1].mlp.down_proj.weight.fill_(float("inf"))
    with pytest.raises(UserError, match=r"llama-0: layer 2 of sample p.* holds NaN or infinity in float32"):
        dump(target, tmp_path)


def test_an_empty_corpus_is_refused(tiny_target, tmp_path):
    with pytest.raises(UserError, match="no response tokens"):
        dump(tiny_target(layers=2), tmp_path, make_corpus()[:0])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("samples", range(1, 12))
def test_every_sequence_lies_in_one_part_whatever_their_number(tiny_target, tmp_path, samples):
    tokens = read_tokens(dump(tiny_target(layers=1), tmp_path, make_corpus(samples)).parts)
    assert tokens.sample_id.unique().tolist() == [f"p{number}" for number in range(samples)]
    assert len(tokens) == sum(1 + len(row.input_ids) - row.response_start for row in make_corpus(samples).itertuples())


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_lens_entropy_is_that_of_the_prediction_read_off_each_layer(tiny_target, tmp_path, family):
    target = tiny_target(family, layers=3)
    found = dump(target, tmp_path, lens_tokens=7)
    rows, values = read_lens(found.parts, 3)
    tokens = read_tokens(found.parts)
    assert values.shape == (7, 4)
    assert tokens.is_response[rows].all()
    for layer in range(4):
        states = torch.from_numpy(read_layer(found.parts, layer)[rows])
        with torch.no_grad():
            log_p = torch.log_softmax(target.logits(states).double(), -1)
        np.testing.assert_allclose(values[:, layer], -(log_p.exp() * log_p).sum(-1), atol=1e-4)
    # at the last layer it is the predictive entropy itself
    np.testing.assert_allclose(values[:, 3], tokens.predictive_entropy[rows], atol=1e-5)


def test_lens_tokens_are_all_of_few_and_none_when_not_asked(tiny_target, tmp_path):
    target = tiny_target("llama", layers=2)
    every = dump(target, tmp_path, lens_tokens=10_000)
    assert len(read_lens(every.parts, 2)[0]) == read_tokens(every.parts).is_response.sum()
    rows, values = read_lens(dump(target, tmp_path, folder="b", lens_tokens=0).parts, 2)
    assert (len(rows), values.shape) == (0, (0, 3))
