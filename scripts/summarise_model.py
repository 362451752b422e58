"""Unite one model's results: one Parquet file for each table of the study.

Long lists of options may come from files, one option a line: `@FILE`.
"""

import argparse
from pathlib import Path

from speclayers import command
from speclayers.analysis import inputs
from speclayers.analysis.summary import ModelResults, write_summary
from speclayers.tables import Origin


def main() -> None:
    """Summarise one model."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, fromfile_prefix_chars="@")
    arguments.add_argument("--model", required=True, help="name of the model")
    arguments.add_argument("--fingerprint", default="", help="fingerprint of this stage, for the metadata")
    arguments.add_argument("--dtype", default="float32", help="precision of the passes; exactness is gated in float32")
    arguments.add_argument("--target", type=Path, required=True, help="manifest of the fetched model")
    arguments.add_argument("--geometry", type=Path, required=True, help="folder of the geometry tables")
    arguments.add_argument("--selections", type=Path, required=True, help="table of the chosen layer sets")
    for name, form, meaning in (
        ("--head", "HEAD=DIR", "folder of a trained head"),
        ("--acceptance", "HEAD:T:NODES=DIR", "folder of an acceptance run"),
        ("--baseline", "T=FILE", "plain decoding at a temperature"),
        ("--speed", "HEAD:T:NODES=FILE", "a timed run"),
    ):
        arguments.add_argument(name, action="append", default=[], metavar=form, help=f"{meaning}; repeatable")
    arguments.add_argument("--screening", type=Path, help="table of the screening, where there is one")
    arguments.add_argument("--output", type=Path, required=True, help="folder of the summary to write")
    args = arguments.parse_args()
    results = ModelResults(
        model=args.model,
        dtype=args.dtype,
        manifest=inputs.manifest("--target", args.target),
        geometry=args.geometry,
        selections=args.selections,
        heads=inputs.named_paths("--head", args.head),
        acceptance=inputs.runs("--acceptance", args.acceptance),
        baselines=inputs.baselines("--baseline", args.baseline),
        speed=inputs.runs("--speed", args.speed),
        screening=args.screening,
    )
    write_summary(results, args.output, Origin(args.model, args.fingerprint))


if __name__ == "__main__":
    command.run(main)
