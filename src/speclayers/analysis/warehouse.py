"""The study's DuckDB file: all models' tables united, the estimates, and the views over both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from speclayers.analysis.schemas import ESTIMATES, SUMMARIES
from speclayers.errors import UserError
from speclayers.files import FULL, atomic_path
from speclayers.tables import Table, read_origin

EXPORTS = (
    *("acceptance_summary", "comparisons", "transfers", "category_estimates", "depth_estimates", "speed_estimates"),
    *("position_estimates", "power_estimates"),
    *("correlations", "layer_profile", "selected", "selector_agreement", "geometry_filter_effect"),
    *("drafters", "rival_differences", "skip_profile", "skip_overlap", "skip_changes"),
    *("geometry_filter_sweep", "geometry_filter_sets"),
    *("screening", "curve_ranks", "runs", "heads", "costs", "provenance"),
)
"""Tables and views that are also written as Parquet and CSV."""

Connection = duckdb.DuckDBPyConnection


@contextmanager
def new_database(path: Path, threads: int) -> Iterator[Connection]:
    """Give an empty database that appears at `path` only when all went well.

    Args:
        path: File to write.
        threads: Processor threads that read and unite the summaries.

    Raises:
        UserError: The file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.unlink()  # DuckDB refuses a file that exists and is empty
        with _told_when_full(path), duckdb.connect(str(temporary), config={"threads": threads}) as connection:
            yield connection
            connection.execute("checkpoint")


@contextmanager
def _told_when_full(path: Path) -> Iterator[None]:
    """Tell a full disk in one line: DuckDB says so with an error of its own, which holds the system's words."""
    try:
        yield
    except duckdb.IOException as error:
        if not any(os.strerror(code) in str(error) for code in FULL):
            raise
        raise UserError(f"{path}: cannot be written: {error}") from error


@contextmanager
def open_database(path: Path) -> Iterator[Connection]:
    """Open a study's database for reading.

    Raises:
        UserError: It is missing or broken.
    """
    if not path.exists():
        raise UserError(f"{path}: file is missing")
    connection = None
    try:
        connection = duckdb.connect(str(path), read_only=True, config={"threads": 1})  # means repeat to the last digit
        with connection:
            yield connection
    except duckdb.Error as error:
        # a truncated file opens, and fails at the first table that lies behind its end
        if connection is not None and not isinstance(error, duckdb.IOException):
            raise
        raise UserError(f"{path}: is no readable DuckDB file ({error}); delete it and run again") from None


def query(connection: Connection, sql: str, parameters: list[Any] | None = None) -> pd.DataFrame:
    """Return the rows of a query; numbers that are null become NaN, texts None."""
    frame: pd.DataFrame = connection.sql(sql, params=parameters).to_arrow_table().to_pandas()
    return frame


def unite_summaries(connection: Connection, summaries: Mapping[str, Path]) -> None:
    """Create one table for each of layout.SUMMARY_TABLES over all models.

    Args:
        connection: Database to write to.
        summaries: Folder of each model's summary.

    Raises:
        UserError: A summary is missing, truncated, has other columns, or is another model's.
    """
    for name, table in SUMMARIES.items():
        paths = [folder / f"{name}.parquet" for folder in summaries.values()]
        for model, path in zip(summaries, paths, strict=True):
            _check_summary(path, table, model)
        connection.read_parquet([str(path) for path in paths]).create(name)
        _comment(connection, name, table)


def _check_summary(path: Path, table: Table, model: str) -> None:
    found = read_origin(path).get("model")
    if found != model:
        raise UserError(f"{path}: is a summary of '{found}', expected one of '{model}'")
    if not pq.read_schema(path).equals(table.schema, check_metadata=False):
        raise UserError(f"{path}: has other columns than {table.name} of this version; delete it and run again")


def write_estimate(connection: Connection, name: str, frame: pd.DataFrame) -> None:
    """Create a table of ESTIMATES.

    Raises:
        ValueError: Columns are missing or of another type (a bug of the caller).
    """
    table = ESTIMATES[name]
    names = [column.name for column in table.columns]
    if not frame.empty and set(frame.columns) != set(names):
        raise ValueError(f"{name}: columns {sorted(frame.columns)} instead of {sorted(names)}")
    rows = pa.Table.from_pandas(frame.reindex(columns=names), schema=table.schema, preserve_index=False)
    connection.from_arrow(rows).create(name)
    _comment(connection, name, table)


def _comment(connection: Connection, name: str, table: Table) -> None:
    """Write each column's unit and meaning into the database, where duckdb_columns() shows them."""
    for column in table.columns:
        text = f"{column.meaning} [{column.unit}]" if column.unit else column.meaning
        quoted = text.replace("'", "''")
        connection.execute(f"comment on column {name}.{column.name} is '{quoted}'")


def create_set_views(connection: Connection) -> None:
    """Create the views that name layer sets; the summaries and `targets` must be there."""
    _run_script(connection, "sets.sql")


def create_views(connection: Connection) -> None:
    """Create the views over the estimates; every table must be there."""
    _run_script(connection, "views.sql")


def _run_script(connection: Connection, name: str) -> None:
    connection.execute(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def export_tables(connection: Connection, folder: Path) -> None:
    """Write EXPORTS as Parquet and as CSV.

    Raises:
        UserError: A file cannot be written.
    """
    for name in EXPORTS:
        for suffix, options in (("parquet", "format parquet, compression zstd"), ("csv", "format csv, header")):
            with atomic_path(folder / f"{name}.{suffix}") as temporary:
                target = str(temporary).replace("'", "''")
                connection.execute(f"copy (select * from {name}) to '{target}' ({options})")
