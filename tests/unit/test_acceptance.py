"""Acceptance runs: the same tables every time, resumed or not, and no head that changes what is decoded."""

import dataclasses
import json
import logging
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from speclayers.config import Runtime
from speclayers.corpus.chat import render
from speclayers.corpus.questions import Question
from speclayers.decoding import acceptance, baseline
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.baseline import decode_questions, sample_turns
from speclayers.decoding.exactness import Agreement, compare, require_exact
from speclayers.decoding.ranges import QuestionRange, merge_shards
from speclayers.decoding.shards import Shards, job_key, to_frame
from speclayers.decoding.speed import first_of_each_category, measure_speed
from speclayers.decoding.turns import Turn, read_turns
from speclayers.drafting.eagle3 import Eagle3Drafter
from speclayers.drafting.head import save_head
from speclayers.drafting.tree import TreeShape
from speclayers.errors import UserError
from speclayers.specs import BaselineSpec, DecodeSpec, QuestionsSpec, SpeedSpec
from speclayers.tables import BASELINE, CYCLES, SPEED, TURNS, Origin, read_table, write_table
from tests.heads import make_head

SCRIPTS = Path(__file__).parents[2] / "scripts"
SPEC = DecodeSpec(runtime=Runtime(), max_new_tokens=10, depth=3, top_k=4, seed=0)
CHECKED = BaselineSpec(decode=SPEC, check_generate=True)
QUESTIONS = [
    Question(3, "qa", "qa", ("What is red?",), ()),
    Question(8, "mt_bench", "writing", ("Write a line.", "Now another."), ()),
    Question(9, "qa", "qa", ("Who sang it?",), ()),
]


@pytest.fixture
def target(tiny_target):
    target = tiny_target(vocabulary=160)
    # A random model never ends its answers, but for one token that it happens to say.
    return dataclasses.replace(target, manifest=target.manifest.model_copy(update={"stop_ids": [0]}))


@pytest.fixture
def drafter(target):
    return Eagle3Drafter(target, make_head(target, draft_vocabulary=160), TreeShape(12, SPEC.depth, SPEC.top_k))


@pytest.fixture
def greedy(target, tmp_path):
    """Plain greedy decoding's table, as frame."""
    rows = decode_questions(target, QUESTIONS, CHECKED, Shards(tmp_path / "greedy", "key"))
    path = tmp_path / "T0.parquet"
    write_table(path, BASELINE, to_frame(rows["baseline"], BASELINE), Origin("tiny", "f"))
    return read_table(path, BASELINE)


def measured(target, drafter, turns, work, temperature=0.0, spec=SPEC):
    return measure_acceptance(target, drafter, turns, spec, temperature, Shards(work, "key"))


# ---------------------------------------------------------------- plain decoding


def test_a_baseline_that_differs_from_transformers_generate_is_refused(target, tmp_path, monkeypatch, greedy):
    assert greedy.equals_generate.all()
    plain = baseline._decode_turn

    def with_a_wrong_token(*arguments):
        row = plain(*arguments)
        row["output_ids"][2] += 1
        row["top2_margin"][2] = 1.0
        return row

    monkeypatch.setattr(baseline, "_decode_turn", with_a_wrong_token)
    with pytest.raises(UserError, match=r"question \d+.*position 2: transformers' generate differs"):
        decode_questions(target, QUESTIONS, CHECKED, Shards(tmp_path / "wrong", "key"))


def test_penalties_of_the_model_s_own_generation_config_are_no_difference(target, tmp_path):
    own = GenerationConfig(repetition_penalty=3.0, no_repeat_ngram_size=2, eos_token_id=0)
    target.model.generation_config = own
    rows = decode_questions(target, QUESTIONS, CHECKED, Shards(tmp_path / "penalties", "key"))["baseline"]
    assert all(row["equals_generate"] for row in rows)
    assert target.model.generation_config is own


def test_plain_decoding_equals_transformers_and_knows_its_margins(target, greedy):
    for row in greedy.itertuples():
        ids = torch.tensor([row.prompt_ids.tolist()])
        output = target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=SPEC.max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        assert output.sequences[0, ids.shape[1] :].tolist() == row.output_ids.tolist()
        best = torch.cat(output.logits).topk(2).values
        assert row.top2_margin == pytest.approx((best[:, 0] - best[:, 1]).tolist(), abs=1e-4)


def test_second_turns_follow_the_greedy_answer(target, greedy):
    first, second = greedy[greedy.question_id == 8].itertuples()
    said = target.tokenizer.decode(first.output_ids, skip_special_tokens=True)
    assert first.prompt_ids.tolist() == render(target.tokenizer, QUESTIONS[1].turns[:1], [], {})
    assert second.prompt_ids.tolist() == render(target.tokenizer, QUESTIONS[1].turns, [said], {})


def test_sampling_uses_the_greedy_prompts_and_its_own_stream_for_every_turn(target, greedy, tmp_path):
    questions = read_turns(greedy)
    rows = sample_turns(target, questions, SPEC, 1.0, Shards(tmp_path / "work", "key"))["baseline"]
    assert [row["prompt_ids"] for row in rows] == [turn.prompt for turns in questions for turn in turns]
    alone = sample_turns(target, questions[2:], SPEC, 1.0, Shards(tmp_path / "work", "other"))["baseline"]
    assert alone == rows[3:]
    assert rows[0]["output_ids"] != questions[0][0].greedy


# ---------------------------------------------------------------- counting


def test_counts_add_up(target, drafter, greedy, tmp_path):
    rows = measured(target, drafter, read_turns(greedy), tmp_path / "work")
    for turn in rows["turns"]:
        cycles = [c for c in rows["cycles"] if (c["question_id"], c["turn"]) == (turn["question_id"], turn["turn"])]
        assert [cycle["cycle"] for cycle in cycles] == list(range(turn["cycles"]))
        assert 1 + sum(cycle["emitted"] for cycle in cycles) == turn["new_tokens"] == len(turn["output_ids"])
        assert turn["identical_to_greedy"]
        assert turn["first_difference"] is turn["margin_there"] is None
        assert turn["prompt_tokens"] > 0
    assert [turn["question_id"] for turn in rows["turns"]] == [3, 8, 8, 9]


def test_above_temperature_0_there_is_nothing_to_agree_with(target, drafter, greedy, tmp_path):
    rows = measured(target, drafter, read_turns(greedy), tmp_path / "work", temperature=1.0)
    assert {turn["identical_to_greedy"] for turn in rows["turns"]} == {None}
    path = tmp_path / "turns.parquet"
    write_table(path, TURNS, to_frame(rows["turns"], TURNS), Origin("tiny", "f"))
    assert read_table(path, TURNS).identical_to_greedy.isna().all()


ORIGIN = Origin("tiny", "f")


def written(rows, folder, origin=ORIGIN):
    folder.mkdir()
    for name, table in (("cycles", CYCLES), ("turns", TURNS)):
        write_table(folder / name, table, to_frame(rows[name], table), origin)
    return [(folder / name).read_bytes() for name in ("cycles", "turns")]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_killed_run_continues_and_ends_in_the_same_bytes(target, drafter, greedy, tmp_path, monkeypatch, temperature):
    turns = read_turns(greedy)
    whole = written(measured(target, drafter, turns, tmp_path / "a", temperature), tmp_path / "whole")
    decoded = []

    def counted(*arguments):
        decoded.append(arguments[2])
        if len(decoded) == 3:  # in the middle of the second question
            raise KeyboardInterrupt
        return speculate(*arguments)

    speculate = acceptance.speculate
    monkeypatch.setattr(acceptance, "speculate", counted)
    with pytest.raises(KeyboardInterrupt):
        measured(target, drafter, turns, tmp_path / "b", temperature)
    again = written(measured(target, drafter, turns, tmp_path / "b", temperature), tmp_path / "resumed")
    assert again == whole
    assert len(decoded) == 3 + 3, "the first question is not decoded twice, the second from its first turn on"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_shared_out_over_jobs_gives_the_same_bytes(target, drafter, greedy, tmp_path, temperature):
    turns = read_turns(greedy)
    whole = written(measured(target, drafter, turns, tmp_path / "a", temperature), tmp_path / "whole")
    jobs = [QuestionRange(index, 3) for index in range(3)]
    for job in reversed(jobs):
        rows = measured(target, drafter, job.of(turns), tmp_path / f"w{job.index}", temperature)
        written(rows, tmp_path / f"{job.index}", job.origin(ORIGIN))
    for name, table, expected in (("cycles", CYCLES, whole[0]), ("turns", TURNS, whole[1])):
        shards = [tmp_path / f"{job.index}" / name for job in jobs]
        merge_shards(shards, table, tmp_path / name, ORIGIN)
        assert (tmp_path / name).read_bytes() == expected
        with pytest.raises(UserError, match="fingerprint is 'f/2-of-3', expected 'f/0-of-3'"):
            merge_shards(shards[::-1], table, tmp_path / "wrong", ORIGIN)
    assert not (tmp_path / "wrong").exists()


def test_ranges_hold_every_question_once_and_more_jobs_than_questions_are_refused():
    for count in range(1, 8):
        ranges = [QuestionRange(index, count).of(range(7)) for index in range(count)]
        assert [item for one in ranges for item in one] == list(range(7))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    with pytest.raises(UserError, match=r"acceptance\.shards: 8 jobs for 7 questions"):
        QuestionRange(0, 8).of(range(7))
    with pytest.raises(UserError, match="--shard: found 3, expected 0 to 2"):
        QuestionRange(3, 3).of(range(7))


def test_shards_of_other_settings_are_not_used(tmp_path):
    for key, value in (("a", 1), ("b", 2)):
        rows = Shards(tmp_path, key).collect([0], str, lambda _, value=value: {"t": [{"v": value}]}, "test")
        assert rows == {"t": [{"v": value}]}
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_jobs_key_follows_settings_and_the_content_of_inputs(tmp_path):
    file = tmp_path / "head"
    file.write_text("one")
    keys = [job_key("f", [0.0, 30], [file]), job_key("f", [0.0, 60], [file]), job_key("g", [0.0, 30], [file])]
    file.write_text("two")
    assert len({*keys, job_key("f", [0.0, 30], [file])}) == 4


# ---------------------------------------------------------------- the exactness gate


def with_changes(greedy, place, margin):
    """Pretend that plain decoding had said another token in the first turn of question 8."""
    changed = greedy.copy(deep=True)
    row = changed.index[changed.question_id == 8][0]
    ids, margins = changed.output_ids[row].copy(), changed.top2_margin[row].copy()
    ids[place] += 1
    margins[place] = margin
    changed.at[row, "output_ids"], changed.at[row, "top2_margin"] = ids, margins
    return read_turns(changed)


def test_gate_fails_when_one_id_differs(target, drafter, greedy, tmp_path):
    with pytest.raises(UserError, match=r"question 8, turn 0: position 4: eagle3 .* top-2 margin is 0\.25"):
        measured(target, drafter, with_changes(greedy, 4, 0.25), tmp_path / "work")


def test_gate_passes_a_tie_and_counts_it(target, drafter, greedy, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rows = measured(target, drafter, with_changes(greedy, 4, 0.0005), tmp_path / "work")
    different = [row for row in rows["turns"] if not row["identical_to_greedy"]]
    assert [(row["question_id"], row["turn"], row["first_difference"]) for row in different] == [(8, 0, 4)]
    assert different[0]["margin_there"] == pytest.approx(0.0005)
    assert "3 of 4 answers equal" in caplog.text
    assert "question 8, turn 0, position 4" in caplog.text


def test_gate_only_reports_in_lower_precision(target, drafter, greedy, tmp_path):
    spec = SPEC.model_copy(update={"runtime": Runtime(dtype="bfloat16")})
    rows = measured(target, drafter, with_changes(greedy, 4, 0.25), tmp_path / "work", spec=spec)
    assert sum(not row["identical_to_greedy"] for row in rows["turns"]) == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([1, 2, 3], Agreement(True, None, None)),
        ([1, 5, 3], Agreement(False, 1, 0.2)),
        ([1, 2], Agreement(False, 2, 0.3)),
        ([1, 2, 3, 4], Agreement(False, 3, None)),
    ],
)
def test_first_difference(answer, expected):
    assert compare(answer, [1, 2, 3], [0.1, 0.2, 0.3]) == expected


def test_an_answer_longer_than_greedy_decodings_is_no_tie():
    with pytest.raises(UserError, match="past its end"):
        require_exact(Agreement(False, 3, None), "toy")


# ---------------------------------------------------------------- mistakes are named


def test_a_question_too_long_for_the_context_is_refused_before_the_run(target, drafter, greedy, tmp_path, monkeypatch):
    monkeypatch.setattr(acceptance, "speculate", lambda *_: pytest.fail("nothing may be decoded"))
    turns = read_turns(greedy)
    turns[2][0] = turns[2][0]._replace(prompt=[5] * 501)
    with pytest.raises(
        UserError, match=r"question 9, turn 0: its prompt of 501 tokens, .* 10 and depth 3 .* 513 .* 512"
    ):
        measured(target, drafter, turns, tmp_path / "work")
    turns[2][0] = turns[2][0]._replace(prompt=[5] * 500)  # exactly fits
    with pytest.raises(pytest.fail.Exception):
        measured(target, drafter, turns, tmp_path / "work")


def test_a_question_too_long_for_the_context_is_skipped_whole_by_everyone(target, drafter, greedy, tmp_path, caplog):
    # the prompt of `user` and `assistant` takes 18 tokens more; 10 and depth 3 leave 500 of 512 positions
    fits, long = (Question(i, "rag", "rag", ("Why?", "x" * n), ()) for i, n in ((11, 400), (12, 480)))
    shards = Shards(tmp_path / "work", "key")
    rows = decode_questions(target, [*QUESTIONS, long, fits], CHECKED, shards)["baseline"]
    (row,) = [row for row in rows if row["question_id"] == 12]
    assert (row["turn"], row["output_ids"], row["limit"]) == (1, [], 512)
    assert row["positions"] == len(row["prompt_ids"]) + 10 - 1 + 3 > 512
    assert f"question 12, turn 1: needs {row['positions']} positions of 512: the question is skipped" in caplog.text
    table = to_frame(rows, BASELINE)
    turns = read_turns(table)
    assert [asked[0].question_id for asked in turns] == [3, 8, 9, 11]
    assert [turn["question_id"] for turn in measured(target, drafter, turns, tmp_path / "a")["turns"]] == [
        *(3, 8, 8, 9),
        *(11, 11),
    ]
    assert read_turns(table[table.question_id != 11])[:3] == read_turns(greedy)
    with pytest.raises(UserError, match="no question fits into the model's context"):
        read_turns(table[table.question_id == 12])


def test_a_short_attention_window_limits_like_a_short_context(tiny_target, tmp_path):
    target = tiny_target("gemma2")
    target.model.config.sliding_window = 64
    rows = decode_questions(target, [QUESTIONS[0], QUESTIONS[1]], CHECKED, Shards(tmp_path / "w", "key"))["baseline"]
    assert {row["limit"] for row in rows} == {64}
    assert [(row["question_id"], row["turn"]) for row in rows if row["positions"] > 64] == [(8, 1)]


def test_logits_that_are_not_finite_name_the_question(target, drafter, greedy, tmp_path):
    with torch.no_grad():
        target.anatomy.blocks[2].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(UserError, match="question 3, turn 0: the target's logits are not finite"):
        measured(target, drafter, read_turns(greedy), tmp_path / "work")


def test_a_head_that_is_not_finite_names_the_question(target, greedy, tmp_path):
    head = make_head(target)
    head.lm_head.weight[0, 0] = float("nan")
    drafter = Eagle3Drafter(target, head, TreeShape(12, 3, 4), name="eagle3.l01")
    with pytest.raises(UserError, match=r"question 3, turn 0: eagle3\.l01: the draft head's logits"):
        measured(target, drafter, read_turns(greedy), tmp_path / "work")


# ---------------------------------------------------------------- speed


def test_times_add_up_and_answers_are_the_same_length(target, drafter, greedy):
    rows = measure_speed(target, drafter, read_turns(greedy), SPEC, 0.0)
    for row in rows:
        assert row["draft_s"] + row["verify_s"] + row["other_s"] == pytest.approx(row["wall_s"])
        assert min(row["draft_s"], row["verify_s"], row["other_s"], row["baseline_wall_s"]) > 0
        assert row["new_tokens"] == row["baseline_new_tokens"] == 10


def test_first_questions_of_each_category_are_timed():
    questions = [[Turn(number, category, 0, [], [], [])] for number, category in enumerate("aababc")]
    assert [turns[0].question_id for turns in first_of_each_category(questions, 2)] == [0, 1, 2, 4, 5]


# ---------------------------------------------------------------- scripts


def run_script(name, monkeypatch, **options):
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    common = ["--model", "tiny", "--fingerprint", "f00", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [name, *common, *words])
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


def test_scripts_write_their_tables(tiny_target, tmp_path, monkeypatch):
    target = tiny_target(vocabulary=160)
    folder = Path(target.model.config._name_or_path)
    questions = tmp_path / "questions.jsonl"
    spec = QuestionsSpec(questions={"source": "bundled"}, per_category=1, seed=0).canonical()
    run_script("choose_questions.py", monkeypatch, spec=spec, downloads=tmp_path / "d", output=questions)
    lines = [json.loads(line) for line in questions.read_text().splitlines()]
    assert len(lines) == 6
    for line in lines:
        line["turns"] = [turn[:20] for turn in line["turns"]]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))

    decode = {"spec": SPEC.model_copy(update={"max_new_tokens": 4}).canonical(), "target": folder}
    work = tmp_path / "work"
    greedy, sampled = tmp_path / "T0.parquet", tmp_path / "T1.parquet"
    checked = BaselineSpec(decode=DecodeSpec.model_validate_json(decode["spec"]), check_generate=True).canonical()
    plain = decode | {"spec": checked, "questions": questions, "work": work}
    run_script("decode_baseline.py", monkeypatch, **plain, temperature="0.0", output=greedy)
    run_script("decode_baseline.py", monkeypatch, **plain, temperature="1.0", greedy=greedy, output=sampled)
    assert len(read_table(sampled, BASELINE)) == len(read_table(greedy, BASELINE)) == 7
    for shard in range(2):
        run_script(
            "decode_baseline.py",
            monkeypatch,
            **plain,
            temperature=0,
            output=tmp_path / f"{shard}",
            shard=shard,
            shards=2,
        )
    jobs = ["--baseline", tmp_path / "merged", tmp_path / "0", tmp_path / "1"]
    monkeypatch.setattr(sys, "argv", ["x", "--model", "tiny", "--fingerprint", "f00", *map(str, jobs)])
    runpy.run_path(str(SCRIPTS / "merge_shards.py"), run_name="__main__")
    assert (tmp_path / "merged").read_bytes() == greedy.read_bytes()

    save_head(tmp_path / "eagle3.x.s0", make_head(target))
    head = {"target": folder, "head": tmp_path / "eagle3.x.s0" / "model.safetensors", "baseline": greedy, "nodes": 8}
    tables = {"cycles": tmp_path / "cycles.parquet", "turns": tmp_path / "turns.parquet"}
    for temperature in ("0.0", "1.0"):
        options = decode | head | tables | {"work": work, "temperature": temperature}
        run_script("measure_acceptance.py", monkeypatch, **options)
        assert len(read_table(tables["turns"], TURNS)) == 7
        assert len(read_table(tables["cycles"], CYCLES)) > 0
    assert not work.exists()

    speed = SpeedSpec(decode=DecodeSpec.model_validate_json(decode["spec"]), per_category=1).canonical()
    run_script("measure_speed.py", monkeypatch, **head, spec=speed, temperature="0.0", output=tmp_path / "s.parquet")
    assert len(read_table(tmp_path / "s.parquet", SPEED)) == 7


def test_sampling_without_the_greedy_table_is_refused(tmp_path, monkeypatch, capsys):
    options = {"spec": CHECKED.canonical(), "target": tmp_path, "questions": tmp_path, "work": tmp_path}
    with pytest.raises(SystemExit) as stopped:
        run_script("decode_baseline.py", monkeypatch, **options, temperature="1.0", output=tmp_path / "o")
    assert stopped.value.code == 2
    assert "--greedy: is missing" in capsys.readouterr().err
