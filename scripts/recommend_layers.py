"""Write what a model's selections recommend, with the layer ids that each serving engine uses."""

import argparse
from pathlib import Path

from speclayers import command
from speclayers.errors import UserError
from speclayers.export.recommendation import recommendation
from speclayers.files import write_json
from speclayers.tables import SELECTIONS, read_origin, read_table
from speclayers.targets.manifest import MANIFEST, read_manifest


def main() -> None:
    """Write one model's recommendation."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    arguments.add_argument("--model", required=True, help="name of the model")
    arguments.add_argument("--target", type=Path, required=True, help="manifest of the fetched model")
    arguments.add_argument("--selections", type=Path, required=True, help="table of the chosen layer sets")
    arguments.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = arguments.parse_args()
    if args.target.name != MANIFEST:
        raise UserError(f"--target: found {args.target}, expected a model's {MANIFEST}")
    found = read_origin(args.selections).get("model")
    if found != args.model:
        raise UserError(f"{args.selections}: is of model {found}, expected {args.model}")
    n_layers = read_manifest(args.target.parent).layers
    write_json(args.output, recommendation(args.model, n_layers, read_table(args.selections, SELECTIONS)))


if __name__ == "__main__":
    command.run(main)
