"""The page's twin in text: a summary in Markdown, the main comparison as LaTeX and CSV."""

import dataclasses
import re

import pandas as pd
import pytest

from speclayers.analysis.twin import comparison, latex_table, markdown, write_twin
from tests.synthetic import MadeUpModel, made_up_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    other = MadeUpModel("other", n_layers=6, sets={"eagle3": (2, 3), "min_entropy": (1, 2)}, temperatures=(0.0,))
    return made_up_study(tmp_path_factory.mktemp("study"), MadeUpModel("tiny-qwen3", chains=(6,)), other)


def test_the_comparison_has_every_set_at_every_setting_once(study):
    rows = comparison(study)
    assert len(rows) == len(study.tau) == 3 * 2 * 2 + 2
    assert not rows.duplicated(["model", "layer_set", "temperature", "nodes"]).any()
    references = rows[rows["verdict"] == "reference"]
    assert set(references["selectors"]) == {"eagle3, uniform"}
    assert len(references) == 2 * 2 + 1
    assert references["difference"].isna().all()
    worse = rows[(rows["selectors"] == "min_entropy") & (rows["model"] == "tiny-qwen3")]
    assert (worse["difference"] < 0).all()


def test_the_tables_hold_the_same_numbers(study, tmp_path):
    paths = [tmp_path / name for name in ("summary.md", "comparison.tex", "comparison.csv")]
    write_twin(study, *paths)
    summary, latex, csv = (path.read_text() for path in paths)
    numbers = pd.read_csv(tmp_path / "comparison.csv")
    pd.testing.assert_frame_equal(numbers, comparison(study), check_dtype=False)
    rows = re.findall(r"^\| (?!model|---)(.*) \|$", summary, re.MULTILINE)
    assert len(rows) == len(numbers) == latex.count("\\\\\n") - 1
    assert len(csv.splitlines()) == len(numbers) + 1
    for row, tau in zip(rows, numbers["tau_question"], strict=True):
        assert f" {tau:.2f} " in row
        assert f" {tau:.2f} " in latex


def test_the_summary_tells_the_answer_and_links_its_figures(study):
    text = markdown(study)
    assert text.startswith("# Which layers should feed the drafter? Study made-up\n")
    assert "**Found:** Of 2 models: " in text
    assert "](figures/models.svg)" in text
    assert "](figures/difference-tiny-qwen3.svg)" in text
    assert "equal plain greedy decoding" in text
    assert re.search(r"transformers \d+\.\d+", text)


def test_names_cannot_become_markup(study):
    odd = "<script>alert(1)</script> | a_b & 50 % $x^2 \\end{tabular}"
    hostile = dataclasses.replace(
        study,
        tau=study.tau.assign(selectors=odd),
        comparisons=study.comparisons.assign(selectors=odd),
    )
    text, latex = markdown(hostile), latex_table(hostile)
    assert not re.search(r"(?<!\\)<script", text)
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert latex.count("\\end{tabular}") == 1
    body = latex.split("\\midrule")[1].split("\\bottomrule")[0]
    assert not re.search(r"(?<!\\)[&%#_](?! )", body)
    assert r"\textbackslash{}end\{tabular\}" in latex


@pytest.mark.parametrize("questions", [0, 1])
def test_little_is_told_as_little(tmp_path, questions):
    text = markdown(made_up_study(tmp_path, MadeUpModel("bare", questions=questions)))
    assert "nan" not in re.findall(r"\w+", text.lower())
    assert ("## Main comparison" in text) is bool(questions)
