from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from speclayers.config import Runtime, SplitConfig
from speclayers.corpus import generation, responses
from speclayers.corpus.chat import render, render_text
from speclayers.corpus.prompts import Prompt
from speclayers.corpus.responses import generate_responses
from speclayers.errors import UserError
from speclayers.tables import CORPUS, Origin, write_table

TEXTS = ["Hi", "What is a monad?", "Name three rivers of Asia.", "Why?", "Tell me a story about a fox and a hen.", "ok"]
PROMPTS = [Prompt(f"p{i}", "qa", (text,)) for i, text in enumerate(TEXTS)]


def split(**settings) -> SplitConfig:
    return SplitConfig(max_new_tokens=12, **settings)


def answer(row) -> list[int]:
    return list(row.input_ids[row.response_start :])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gemma2", "mistral", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_greedy_batches_equal_transformers_generate(tiny_target, tmp_path, family, batch_size):
    target = tiny_target(family, layers=2)
    corpus = generate_responses(target, PROMPTS, split(), batch_size, tmp_path / "work")
    for row in corpus.itertuples():
        prompt = torch.tensor(row.input_ids[: row.response_start])[None].long()
        expected = target.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12, pad_token_id=1
        )
        assert answer(row) == expected[0, prompt.shape[1] :].tolist()


def test_finished_sequences_leave_without_changing_the_others(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    plain = generate_responses(target, PROMPTS, split(), 6, tmp_path / "a")
    # Let the tokens that some answers contain end them, at different steps.
    stops = {int(row.input_ids[row.response_start + 2 + 2 * i]) for i, row in enumerate(plain.itertuples()) if i < 4}
    stopping = replace(target, manifest=target.manifest.model_copy(update={"stop_ids": sorted(stops)}))
    cut = generate_responses(stopping, PROMPTS, split(), 6, tmp_path / "b")
    lengths = set()
    for before, after in zip(plain.itertuples(), cut.itertuples(), strict=True):
        whole = answer(before)
        ends = [i for i, token in enumerate(whole) if token in stops]
        expected = whole[: ends[0] + 1] if ends else whole
        assert answer(after) == expected
        lengths.add(len(expected))
    assert len(lengths) > 2


def test_rows_match_the_table_and_the_prompts_order(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    corpus = generate_responses(target, PROMPTS, split(), 4, tmp_path / "work")
    write_table(tmp_path / "corpus.parquet", CORPUS, corpus, Origin("tiny", "f"))
    assert list(corpus.sample_id) == list(corpus.prompt_id) == [p.prompt_id for p in PROMPTS]
    assert set(corpus.source) == {"bundled"}
    row = corpus.iloc[1]
    assert list(row.input_ids[: row.response_start]) == render(target.tokenizer, PROMPTS[1].turns, [], {})


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sampled_answers_do_not_depend_on_the_batch(tiny_target, tmp_path, temperature):
    target = tiny_target(layers=2)
    together = generate_responses(target, PROMPTS, split(temperature=temperature), 6, tmp_path / "a")
    alone = generate_responses(target, PROMPTS[::-1], split(temperature=temperature), 1, tmp_path / "b")[::-1]
    assert [answer(r) for r in together.itertuples()] == [answer(r) for r in alone.itertuples()]


def test_seeds_change_sampled_answers(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    one, two = (
        generate_responses(target, PROMPTS, split(temperature=0.9, seed=seed), 6, tmp_path / str(seed))
        for seed in (1, 2)
    )
    assert [answer(r) for r in one.itertuples()] != [answer(r) for r in two.itertuples()]


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([0.1, 0.2, 0.0, 0.7])).expand(20000, -1)
    uniforms = torch.rand(20000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(generation._choose(logits, 1.0, uniforms), minlength=4) / 20000
    np.testing.assert_allclose(counts, [0.1, 0.2, 0.0, 0.7], atol=0.015)
    assert counts[2] == 0
    ends = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert generation._choose(logits[:2], 1.0, ends).tolist() == [0, 3]


def test_a_killed_run_continues_with_the_same_result(tiny_target, tmp_path, monkeypatch):
    target = tiny_target(layers=2)
    whole = generate_responses(target, PROMPTS, split(), 2, tmp_path / "whole")
    calls = []

    def dying(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generation.generate_batch(*args)

    monkeypatch.setattr(responses, "generate_batch", dying)
    with pytest.raises(KeyboardInterrupt):
        generate_responses(target, PROMPTS, split(), 2, tmp_path / "work")
    resumed = generate_responses(target, PROMPTS, split(), 2, tmp_path / "work")
    assert len(calls) == 4  # one finished before the kill, one died, two were left
    pd.testing.assert_frame_equal(resumed, whole)


def test_shards_of_other_settings_are_not_read(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    generate_responses(target, PROMPTS, split(), 2, tmp_path / "work")
    short = generate_responses(target, PROMPTS, SplitConfig(max_new_tokens=3), 2, tmp_path / "work")
    assert max(len(answer(r)) for r in short.itertuples()) == 3


def test_later_turns_follow_the_models_own_answers(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    prompts = [Prompt("a", "chat", ("One?", "Two?")), Prompt("b", "chat", ("Three?",))]
    corpus = generate_responses(target, prompts, split(), 4, tmp_path / "work")
    names = list(zip(corpus.sample_id, corpus.prompt_id, corpus.turn, strict=True))
    assert names == [("a", "a", 0), ("a/1", "a", 1), ("b", "b", 0)]
    second = corpus.iloc[1]
    expected = render(target.tokenizer, ("One?", "Two?"), [corpus.iloc[0].text], {})
    assert list(second.input_ids[: second.response_start]) == expected


def test_long_prompts_are_left_out_and_counted(tiny_target, tmp_path, caplog):
    target = tiny_target(layers=2)
    with caplog.at_level("INFO"):
        corpus = generate_responses(target, PROMPTS, split(max_prompt_tokens=36), 4, tmp_path / "work")
    assert list(corpus.sample_id) == ["p0", "p1", "p3", "p5"]
    assert "left out 2 prompts longer than 36 tokens" in caplog.text


def test_prompts_that_leave_no_room_in_the_context_are_left_out(tiny_target, tmp_path):
    target = tiny_target("gpt2", layers=2)
    prompts = [Prompt("fits", "qa", ("x" * 470,)), Prompt("long", "qa", ("x" * 490,))]
    corpus = generate_responses(target, prompts, split(max_prompt_tokens=4096), 2, tmp_path / "work")
    assert list(corpus.sample_id) == ["fits"]


def test_an_empty_corpus_is_refused(tiny_target, tmp_path):
    target = tiny_target(layers=2)
    with pytest.raises(UserError, match="none of 6 prompts has at most 8 tokens"):
        generate_responses(target, PROMPTS, split(max_prompt_tokens=8), 4, tmp_path / "work")


def test_prompts_without_template_use_the_plain_format(tiny_target):
    tokenizer = tiny_target(layers=2, chat=False).tokenizer
    assert render_text(tokenizer, ["A?", "B?"], [" yes\n"], {}) == "User: A?\nAssistant: yes\nUser: B?\nAssistant:"
    assert tokenizer.decode(render(tokenizer, ["A?"], [], {})) == "User: A?\nAssistant:"


def test_template_options_reach_the_template(tiny_target):
    tokenizer = tiny_target(layers=2).tokenizer
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if think %}!{% endif %}"
    assert render_text(tokenizer, ["A"], [], {"think": True}) == "A!"
    tokenizer.chat_template = "{{ raise_exception('system only') }}"
    with pytest.raises(UserError, match="refuses a conversation: system only"):
        render_text(tokenizer, ["A"], [], {})
    tokenizer.chat_template = ""
    with pytest.raises(UserError, match="make no token of a conversation"):
        render(tokenizer, ["A"], [], {})


def test_generated_ids_are_rendered_as_text(tiny_target):
    tokenizer = tiny_target(layers=2).tokenizer
    ids = tokenizer("yes", add_special_tokens=False).input_ids
    assert render(tokenizer, ["A", "B"], [[*ids, 0]], {}) == render(tokenizer, ["A", "B"], ["yes"], {})


def test_bfloat16_runs(tiny_target, tmp_path):
    target = tiny_target(layers=2, runtime=Runtime(dtype="bfloat16"))
    assert len(generate_responses(target, PROMPTS, split(), 4, tmp_path / "work")) == len(PROMPTS)
