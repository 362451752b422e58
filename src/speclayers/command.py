"""How every script starts and ends: its arguments, its threads, its one line of error."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from speclayers.errors import UserError
from speclayers.tables import Origin


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every stage has.

    Args:
        description: The script's docstring.
    """
    arguments = argparse.ArgumentParser(description=description, allow_abbrev=False)
    arguments.add_argument("--spec", required=True, help="this stage's slice of the config, as JSON")
    arguments.add_argument("--model", required=True, help="name of the model, for messages and metadata")
    arguments.add_argument("--fingerprint", required=True, help="fingerprint of this stage's settings and code")
    arguments.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="processor threads to use")
    return arguments


def add_activations(arguments: argparse.ArgumentParser) -> None:
    """Add the options of a script that reads an activation dump."""
    arguments.add_argument("--activations", type=Path, required=True, help="manifest of the activation dump")
    arguments.add_argument("--activations-fingerprint", required=True, help="fingerprint that this dump must have")


def add_shard(arguments: argparse.ArgumentParser) -> None:
    """Add the options of a script that may do a part of the questions."""
    arguments.add_argument("--shard", type=int, default=0, help="number of this job's range of questions, from 0")
    arguments.add_argument("--shards", type=int, default=1, help="how many jobs share the questions")


def activations_origin(arguments: argparse.Namespace) -> Origin:
    """Return the model and fingerprint that the dump must have."""
    return Origin(model=arguments.model, fingerprint=arguments.activations_fingerprint)


def origin(arguments: argparse.Namespace) -> Origin:
    """Return what goes into the metadata of the tables that this run writes."""
    return Origin(model=arguments.model, fingerprint=arguments.fingerprint)


def run(main: Callable[[], None]) -> None:
    """Run a script: what the user can mend becomes one line on standard error and exit status 2."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("speclayers").setLevel(logging.INFO)
    try:
        main()
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print("error: out of memory; give the rule more mem_mb or lower the counts in the config", file=sys.stderr)
        sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    # torch's own error, told by its name because most scripts do without torch, and its CPU allocator's message
    named = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return named or isinstance(error, MemoryError)
