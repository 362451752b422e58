"""Render the page of the layers: what geometry chooses, how sure that is and why; needs no training.

Long lists of options may come from files, one option a line: `@FILE`.
"""

import argparse
from pathlib import Path

from speclayers import command
from speclayers.analysis.inputs import layer_results
from speclayers.analysis.layers_page import write_layers_page
from speclayers.specs import AggregateSpec, read_spec


def main() -> None:
    """Render one study's page of layers."""
    arguments = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, fromfile_prefix_chars="@")
    arguments.add_argument("--spec", required=True, help="this stage's slice of the config, as JSON")
    arguments.add_argument("--fingerprint", default="", help="fingerprint of this stage, for the provenance")
    for name, meaning in (
        ("--target", "MODEL=FILE, a model's manifest; repeatable"),
        ("--geometry", "MODEL=DIR, folder of a model's geometry tables; repeatable"),
        ("--selections", "MODEL=FILE, table of a model's layer sets; repeatable"),
        ("--recommendation", "MODEL=FILE, a model's recommendation.json; repeatable"),
    ):
        arguments.add_argument(name, action="append", required=True, help=meaning)
    arguments.add_argument("--page", type=Path, required=True, help="HTML file to write")
    args = arguments.parse_args()
    results, recommendations = layer_results(args.target, args.geometry, args.selections, args.recommendation)
    write_layers_page(results, recommendations, read_spec(AggregateSpec, args.spec), args.fingerprint, args.page)


if __name__ == "__main__":
    command.run(main)
