"""The queries of docs/queries.md run, and answer what they say."""

import re
from pathlib import Path

import duckdb
import pytest

from tests.synthetic import MadeUpModel, made_up_study

PAGE = (Path(__file__).parents[2] / "docs/queries.md").read_text()
QUESTIONS = re.findall(r"^## (\d+)\. (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
QUERIES = {
    f"{number}{letter}": sql
    for number, _, text in QUESTIONS
    for letter, sql in zip("abc", re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL), strict=False)
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    sets = {"eagle3": (2, 6, 9), "min_entropy": (1, 2, 3)} | {f"random{i}": (1 + i, 3 + i, 4 + i) for i in range(7)}
    many = MadeUpModel("many", sets=sets, questions=6, nodes=(30, 60), different_turns=1)
    made_up_study(root, many, MadeUpModel("tiny-qwen3", temperatures=(0.0,), chains=(6,), rivals={"clasp": 0.9}))
    with duckdb.connect(str(root / "study.duckdb"), read_only=True) as connection:
        yield connection


def test_there_are_ten_questions_each_with_an_answer():
    assert [int(number) for number, *_ in QUESTIONS] == list(range(1, 11))
    assert {key[:-1] for key in QUERIES} == {str(n) for n in range(1, 11)}
    assert PAGE.count("```sql") == len(QUERIES)


@pytest.mark.parametrize("key", QUERIES)
def test_a_query_runs_and_finds_something(connection, key):
    found = connection.sql(QUERIES[key])
    assert len(found.columns) > 3
    assert len(found.fetchall()) > 0


def test_the_best_set_and_the_worst_are_those_that_were_made_so(connection):
    rows = connection.sql(QUERIES["1a"]).df()
    assert rows["layers"].notna().all()  # a drafter without a head would be the first
    assert rows[rows["model"] == "tiny-qwen3"].iloc[-1]["selectors"] == "min_entropy"
    verdicts = connection.sql(QUERIES["2a"]).df()
    assert set(verdicts[verdicts["selectors"] == "min_entropy"]["verdict"]) >= {"lower"}
    assert (verdicts["selectors"] != "eagle3").all()


def test_a_pivot_has_a_column_a_setting(connection):
    columns = connection.sql(QUERIES["4a"]).columns
    assert sum(column.startswith("T=") for column in columns) == 2 * 2 + 1 + 1  # a chain, and what the drafter drafts


def test_correlations_are_known_where_enough_sets_are(connection):
    rows = connection.sql(QUERIES["7a"]).df()
    assert rows[rows["model"] == "many"]["rho"].notna().all()


def test_the_turns_that_differ_are_found(connection):
    rows = connection.sql(QUERIES["9b"]).df()
    assert set(rows["model"]) == {"many"}
    assert set(rows["first_difference"]) == {5}


def test_the_examples_in_python_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "embedded"):
        (tmp_path / "results" / name).mkdir(parents=True)
        made_up_study(tmp_path / "results" / name, MadeUpModel(f"of-{name}", questions=2, temperatures=(0.0,)))
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, {})
    shown = capsys.readouterr().out
    assert "of-quickstart" in shown
    assert "of-embedded" in shown
