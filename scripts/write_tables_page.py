"""Write docs/tables.md from the tables' schemas and the database's views, or check that it is in step."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import duckdb
import pyarrow as pa

from speclayers import tables
from speclayers.analysis import schemas
from speclayers.analysis.warehouse import EXPORTS, Connection, create_set_views, create_views
from speclayers.command import run
from speclayers.drafting.feature_store import INDEX, INDEX_FILE
from speclayers.errors import UserError
from speclayers.files import write_text
from speclayers.geometry.shards import GRAM_SHARD
from speclayers.layout import Layout
from speclayers.tables import Column, Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tables.md"
LAYOUT = Layout("{study}")
RUN = ("{model}", "{head}", "{temperature}", "{nodes}")

ACTIVATIONS = Table(
    "activations",
    (
        Column("sample_id", pa.string(), "", "Prompt the sequence answers."),
        Column("position", pa.int32(), "tokens", "Position in the sequence."),
        Column("token_id", pa.int32(), "", "Token at that position."),
        Column("is_response", pa.bool_(), "", "Whether the response holds the position, not the prompt."),
        Column("predictive_entropy", pa.float32(), "nats", "Entropy of the target's next-token distribution there."),
        Column("next_logprob", pa.float32(), "nats", "Log-probability of the token that follows; null at the end."),
        Column("is_sink", pa.bool_(), "", "Position 0, or a norm above 10 times the layer's median in any layer."),
        Column("norms", pa.list_(pa.float32()), "", "Norm of the state in every layer."),
        Column(
            "lens_entropy", pa.list_(pa.float32()), "nats", "Vocabulary entropy read off each layer; few rows only."
        ),
        Column("h00 ... hNN", pa.binary(), "", "State of each layer, packed: width numbers in the model's dtype."),
    ),
)
"""The one table without a schema: how many columns it has, and how wide they are, depends on the model."""

PLACES = {
    LAYOUT.corpus("{model}", "{split}"): tables.CORPUS,
    f"{Path(LAYOUT.activations('{model}')).parent}/part-*.parquet": ACTIVATIONS,
    **{LAYOUT.geometry("{model}", name): table for name, table in tables.GEOMETRY.items()},
    LAYOUT.gram_shard("{model}", "{shard}"): GRAM_SHARD,
    LAYOUT.selections("{model}"): tables.SELECTIONS,
    LAYOUT.screening("{model}"): tables.SCREENING,
    f"{Path(LAYOUT.features('{model}', 'any')).parent}/{INDEX_FILE}": INDEX,
    LAYOUT.head("{model}", "{head}", "training.parquet"): tables.TRAINING,
    LAYOUT.baseline("{model}", "{temperature}"): tables.BASELINE,
    LAYOUT.acceptance(*RUN, "cycles"): tables.CYCLES,
    LAYOUT.acceptance(*RUN, "turns"): tables.TURNS,
    LAYOUT.speed(*RUN): tables.SPEED,
    LAYOUT.rival("{model}", "{rival}", "search.parquet"): tables.SKIP_SEARCH,
}


class View(NamedTuple):
    """A view in words; a column that is not its own has the meaning that the first of the tables gives it."""

    meaning: str
    sources: Sequence[Table] = ()
    own: Mapping[str, str] = {}


OF_SET = {
    "kind": "Kind of drafter, such as eagle3; moved for a head that kept another set's weights.",
    "layers": "Target layers that it reads, sorted; null when it reads none.",
    "k": "Number of those layers.",
    "selectors": "Selectors that chose the set, joined by commas; empty when none did.",
    "score": "E(S) of the set in nats; null when no selector chose it.",
}

SUMMARY_OWN = {
    "drafted_per_cycle": "Draft tokens verified in a cycle, mean; cycles cut by the budget left out.",
    "accepted_per_cycle": "Draft tokens accepted in a cycle, mean; cycles cut by the budget left out.",
    "draft_forwards_per_token": "Forward passes of the drafter for each token emitted, over all cycles.",
    "layer_forwards_per_token": "Decoder-layer passes of the drafter for each token emitted, over all cycles.",
    "search_layer_forwards_per_token": "The same of looking for layers to skip.",
    "search_rows_per_token": "States run over in them, for each token emitted.",
    "search_score": "What searches reached, mean; null where there were none.",
}

VIEWS = {
    "selected": View(
        "Every selection, with its layer set's name.",
        (schemas.SUMMARIES["selections"], schemas.RUNS),
        {"label": "The selector, with its seed where it was asked for several."},
    ),
    "selectors_of_set": View("Who chose a layer set.", (schemas.RUNS,), OF_SET),
    "sets": View("Every layer set that was measured, chosen or not.", (schemas.RUNS,), OF_SET),
    "acceptance_summary": View(
        "tau of every layer set at every setting, with what drafting cost.",
        (schemas.TAU_ESTIMATES, schemas.RUNS),
        OF_SET | SUMMARY_OWN,
    ),
    "comparisons": View(
        "Every difference to the reference, with its verdict.", (schemas.DIFFERENCES, schemas.RUNS), OF_SET
    ),
    "layer_profile": View(
        "What is known of each layer, sinks left out.",
        (schemas.SUMMARIES["geometry_turning"],),
        {
            "layer": "Layer index: 0 embedding, N last block before the final norm.",
            "entropy_all": "Shannon entropy in nats, pooled over prompts, all tokens.",
            "entropy_filtered": "The same on tokens of highest predictive entropy: the S(l) of the selectors.",
            "entropy_random": "The same on as many random tokens.",
            "entropy_per_prompt": "Mean over prompts of the entropy of their own filtered tokens, in nats.",
            "spread_over_prompts": "Standard deviation of it over prompts, in nats.",
            "cka_to_next": "Debiased CKA to the next layer, filtered tokens.",
            "turning_score": "Turning score.",
            "effective_rank": "Exp of the entropy of the singular values, filtered tokens.",
            "lens_entropy": "Mean entropy over the vocabulary read off the layer, in nats, some response tokens.",
        },
    ),
    "preparation": View(
        "Jobs that made a drafter before it was measured: those named by nothing but the model and the drafter.",
        (schemas.JOBS, schemas.RUNS),
        {
            "is_training": "Whether the rule trains; else it searches.",
            "jobs": "Jobs measured, one a seed.",
            "seconds": "Wall-clock time of one of them, mean.",
            "max_rss_mb": "Largest resident memory of one.",
        },
    ),
    "extra_memory": View(
        "How much more memory a drafter's runs take than plain decoding at the same temperature.",
        (schemas.RUNS,),
        {"extra_mb": "Largest resident memory of the run minus plain decoding's, in MB; of the host, also on a GPU."},
    ),
    "drafters": View(
        "Everything that is known of every drafter, with a head or without, moved heads left out.",
        (schemas.RIVAL_DIFFERENCES, schemas.TAU_ESTIMATES, schemas.SPEED_ESTIMATES, schemas.RUNS),
        OF_SET
        | SUMMARY_OWN
        | {
            "extra_mb": "Memory over plain decoding's, in MB, as in `extra_memory`; null where it was not measured.",
            "training_s": "Seconds of the job that trained it alone, mean over its seeds; 0 where nothing is trained,"
            " null where that was elsewhere or not measured.",
            "search_s": "Seconds of searches before it drafts, likewise.",
            "lossless": "Whether no greedy answer in float32 differs from plain decoding's elsewhere than at a tie.",
        },
    ),
    "skip_profile": View(
        "How often a drafter skips each block, and what CKA says of the block.",
        (schemas.RUNS, schemas.SUMMARIES["geometry_turning"]),
        {
            "layer": "Block, by the layer that it gives.",
            "attention_skipped": "Share of cycles that drafted without its attention.",
            "mlp_skipped": "Share of cycles that drafted without its MLP.",
            "cka_through": "Debiased CKA of its input and its output, filtered tokens; null for block 1.",
        },
    ),
    "skip_overlap": View(
        "Whether a drafter skips the blocks that CKA calls redundant.",
        (schemas.RUNS,),
        {
            "skipped_blocks": "Blocks skipped, mean over cycles; attention or MLP alone counts half.",
            "redundant_share": "Share of these that are among as many blocks of the highest CKA of input and output.",
            "share_by_chance": "What that share would be if blocks were skipped at random.",
        },
    ),
    "skip_changes": View(
        "How much of what is skipped stays from one search to the next, within a turn.",
        (schemas.RUNS,),
        {
            "searches": "Searches for layers to skip.",
            "kept_share": "Share of the skipped parts that were skipped before, too; null with one search a turn.",
        },
    ),
    "selector_agreement": View(
        "Every pair of selections of equal k.",
        (schemas.SUMMARIES["selections"],),
        {
            "selector_a": "One selection's label.",
            "selector_b": "The other's.",
            "shared_layers": "Layers that both chose.",
            "jaccard": "Those over the layers that either chose.",
        },
    ),
    "costs": View(
        "What the jobs of a rule took, summed. A job that was killed and continued counts only its last run. Jobs of"
        " models, heads and settings that the study no longer has do not count.",
        (schemas.JOBS,),
        {
            "jobs": "Jobs measured.",
            "gpu_seconds": "Seconds times GPUs asked for; null in measurements without resources.",
            "gpu_type": "Types of GPU in the jobs' nodes; null where there is none, and outside SLURM.",
            "tokens": "Tokens of `job_tokens`; null where no table counts them.",
            "tokens_per_s": "Those over the seconds of their jobs, loading included; too high where a job was"
            " killed and continued.",
            "slurm_jobs": "SLURM's ids of the jobs; null outside SLURM.",
        },
    ),
    "job_tokens": View(
        "Tokens of a job, where the study's tables count them: answered, learnt from in training, or, when timed, both"
        " the drafter's and plain decoding's.",
        (schemas.JOBS,),
        {"tokens": "Tokens."},
    ),
    "provenance": View(
        "All facts, and the fingerprints of acceptance runs and heads.",
        (schemas.FACTS,),
        {"part": "Part of the study: as in facts, acceptance or head.", "key": "Name of the fact, or the drafter."},
    ),
}

ASCII = str.maketrans(
    {"τ": "tau", "Σ": "sum", "Π": "prod", "ρ": "rho", "é": "e", "−": "-", "²": "^2", "₁": "1", "≤": "<=", "…": "..."}
)

INTRO = f"""\
<!-- Written by scripts/write_tables_page.py. Change a meaning where its column is defined, then run the script. -->

# Tables

Every table of a study: where it lies, and what its columns hold. Times are in seconds, entropies in nats.
All files are Parquet with zstd compression, except the activations. A file's metadata names the schema's
version, the model, the fingerprint of settings and code, and the versions of torch and transformers.
`speclayers.tables.read_table` checks a file's columns against its schema. What the quantities mean is
in [method.md](method.md). Where the files lie is in [results/README.md](../results/README.md).

```python
import duckdb

duckdb.connect("{Layout("quickstart").database}", read_only=True).sql("from acceptance_summary")
```

Greek letters are spelled out here; in the files' own metadata they stand as they are.
"""

SUMMARY_INTRO = f"""\
Rule `summarise_model` unites one model's tables in `{LAYOUT.summary("{model}", "{table}")}`:
the same rows, with columns in front that place them in the study. `study.duckdb` holds each table under the
name given here, over all models. `geometry_gram` leaves out the rows of pairs of blocks, which only the
selection's half-samples use. `heads`, `runs` and `skipped_questions` are made anew.

The columns in front:
"""

ESTIMATES_INTRO = f"""\
Rule `aggregate_study` computes these from the summaries and keeps them in `{LAYOUT.database}`.
How they are computed is in [method.md](method.md#statistics). Limits are null where fewer than five questions
were measured.
"""

VIEWS_INTRO = """\
Views of `study.duckdb`, defined in [sets.sql](../src/speclayers/analysis/sets.sql) and
[views.sql](../src/speclayers/analysis/views.sql). Types are DuckDB's.
"""


def main() -> None:
    """Write the page; with --check, only compare."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="fail when the file is not in step")
    check = arguments.parse_args().check
    text = "\n".join(page())
    if not check:
        write_text(PAGE, text)
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        raise UserError(f"{PAGE.name}: is not in step with the schemas; run `python scripts/{Path(__file__).name}`")


def page() -> Iterator[str]:
    """Yield the page's lines."""
    yield INTRO
    yield "## Tables of the stages\n"
    for place, table in PLACES.items():
        yield f"### {table.name}\n\n`{place}`\n"
        yield from schema_rows(table.columns)
    yield "## Summaries\n"
    yield SUMMARY_INTRO
    yield from schema_rows((*schemas.DRAFTER, *schemas.SETTING))
    united = {name: stage_of(table) for name, table in schemas.SUMMARIES.items()}
    yield from markdown(
        ("table", "columns in front", "then those of"),
        [
            (f"`{name}`", columns_in_front(schemas.SUMMARIES[name], stage), f"[{stage.name}](#{anchor(stage.name)})")
            for name, stage in united.items()
            if stage
        ],
    )
    for name, stage in united.items():
        if not stage:
            yield f"### {name}\n"
            yield from schema_rows(schemas.SUMMARIES[name].columns)
    yield "## Estimates\n"
    yield ESTIMATES_INTRO
    for table in schemas.ESTIMATES.values():
        yield f"### {table.name}\n"
        yield from schema_rows(table.columns)
    yield "## Views\n"
    yield VIEWS_INTRO
    with empty_database() as connection:
        for name, view in VIEWS.items():
            yield f"### {name}\n\n{view.meaning}\n"
            yield from view_rows(connection, name, view)
    yield "## Files to take away\n"
    yield f"`{LAYOUT.tables}/` holds these tables and views as Parquet and as CSV:\n"
    yield fill(", ".join(f"`{name}`" for name in EXPORTS) + ".", width=110) + "\n"


def stage_of(summary: Table) -> Table | None:
    """Return the stage's table that a summary's columns end with; None when it is made anew."""
    return next((t for t in PLACES.values() if summary.columns[-len(t.columns) :] == t.columns), None)


def columns_in_front(summary: Table, stage: Table) -> str:
    """List the columns of a summary that its stage's table has not."""
    return ", ".join(f"`{column.name}`" for column in summary.columns[: -len(stage.columns)])


def schema_rows(columns: Iterable[Column]) -> Iterator[str]:
    """Yield a table of columns."""
    rows = [(f"`{c.name}`", arrow_type(c.type), c.unit, c.meaning) for c in columns]
    yield from markdown(("column", "type", "unit", "meaning"), rows)


def arrow_type(kind: pa.DataType) -> str:
    """Name an Arrow type."""
    return f"list of {kind.value_type}" if pa.types.is_list(kind) else str(kind)


def view_rows(connection: Connection, name: str, view: View) -> Iterator[str]:
    """Yield a view's columns as DuckDB has them, with what they mean."""
    meanings = {c.name: c.meaning for table in reversed(view.sources) for c in table.columns} | dict(view.own)
    found = connection.sql(f"describe {name}").fetchall()
    unknown = [column for column, *_ in found if column not in meanings]
    if unknown:
        raise UserError(f"view {name}: column {unknown[0]} has no meaning in VIEWS; add one")
    yield from markdown(("column", "type", "meaning"), [(f"`{c}`", kind, meanings[c]) for c, kind, *_ in found])


def empty_database() -> Connection:
    """Return a database with all tables and views, and no rows."""
    connection = duckdb.connect()
    for name, table in (schemas.SUMMARIES | schemas.ESTIMATES).items():
        connection.from_arrow(table.schema.empty_table()).create(name)
    create_set_views(connection)
    create_views(connection)
    known = {name for (name,) in connection.sql("select view_name from duckdb_views() where not internal").fetchall()}
    if apart := sorted(known ^ set(VIEWS)):
        raise UserError(f"view {apart[0]}: is either not in VIEWS or not in the database")
    return connection


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table in ASCII, so that it reads the same in any terminal."""
    for row in (head, ["---"] * len(head), *rows):
        cells = (cell.replace("|", r"\|").translate(ASCII) for cell in row)
        line = f"| {' | '.join(cells)} |"
        if not line.isascii():
            raise UserError(f"{line}: has a character that ASCII does not spell out yet")
        yield line
    yield ""


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return heading.lower().replace("/", "")


if __name__ == "__main__":
    run(main)
