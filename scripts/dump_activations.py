"""Dump the states of all layers over the calibration responses."""

from pathlib import Path

import torch

from speclayers import command
from speclayers.corpus.activations import dump_activations
from speclayers.specs import DumpSpec, read_spec
from speclayers.tables import CORPUS, read_table
from speclayers.targets.target import load_target


def main() -> None:
    """Read the arguments and dump; parts of an interrupted dump beside the manifest are continued."""
    parser = command.parser(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file of the responses")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON file to write, parts beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    spec = read_spec(DumpSpec, arguments.spec)
    corpus = read_table(arguments.corpus, CORPUS)
    target = load_target(arguments.target, arguments.model, spec.runtime)
    origin = command.origin(arguments)
    dump_activations(target, corpus, arguments.manifest, origin, spec.max_tokens, spec.lens_tokens)


if __name__ == "__main__":
    command.run(main)
