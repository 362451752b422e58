"""Store the target's states over the training responses, for the layers that the study's heads read."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers.command import origin, parser, run
from speclayers.drafting.feature_store import MANIFEST_FILE
from speclayers.drafting.features import extract, read_head_layers
from speclayers.errors import UserError
from speclayers.specs import FeaturesSpec, read_spec
from speclayers.tables import CORPUS, read_table
from speclayers.targets.target import load_target


def main() -> None:
    """Parse, extract; layers that the store holds already are kept."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--corpus", type=Path, required=True, help="training responses")
    arguments.add_argument("--heads", type=Path, required=True, help="heads.json: the heads to train")
    arguments.add_argument("--output", type=Path, required=True, help="manifest.json of the store, beside its files")
    arguments.add_argument("--work", type=Path, required=True, help="folder of unfinished files, on the same disk")
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    if args.output.name != MANIFEST_FILE:
        raise UserError(f"--output: is {args.output.name}, expected a path that ends in {MANIFEST_FILE}")
    spec = read_spec(FeaturesSpec, args.spec)
    target = load_target(args.target, args.model, spec.runtime)
    layers = read_head_layers(args.heads, target.n_layers)
    extract(target, read_table(args.corpus, CORPUS), layers, args.output.parent, args.work, origin(args))


if __name__ == "__main__":
    run(main)
