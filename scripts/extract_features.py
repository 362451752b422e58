"""Store the target's states over the training responses, for some layers and the last, in one pass."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers.command import origin, parser, run
from speclayers.drafting.features import extract
from speclayers.names import layers_of
from speclayers.specs import FeaturesSpec, read_spec
from speclayers.tables import CORPUS, read_table
from speclayers.targets.target import load_target


def main() -> None:
    """Parse, extract; layers that the store holds already are kept."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--corpus", type=Path, required=True, help="training responses")
    arguments.add_argument("--layers", required=True, help="layers to store, such as l02-l15-l27; top: the last alone")
    arguments.add_argument("--output", type=Path, required=True, help="manifest to write, beside the layers' files")
    arguments.add_argument("--work", type=Path, required=True, help="folder of unfinished files, on the same disk")
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    spec = read_spec(FeaturesSpec, args.spec)
    target = load_target(args.target, args.model, spec.runtime)
    corpus = read_table(args.corpus, CORPUS)
    extract(target, corpus, layers_of(args.layers), args.output, args.work, origin(args))


if __name__ == "__main__":
    run(main)
