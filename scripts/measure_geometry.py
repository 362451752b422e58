"""Measure entropy, CKA, Gram products, turning points and the token filter's effect of all layers."""

import tempfile
from pathlib import Path

from speclayers import command
from speclayers.config import GeometryConfig
from speclayers.geometry.dump import open_dump
from speclayers.geometry.measure import measure
from speclayers.geometry.shards import Shards
from speclayers.specs import read_spec
from speclayers.tables import CKA, CONVERGENCE, ENTROPY, FILTER_EFFECT, GRAM, LENS, TURNING, Origin, write_table


def main() -> None:
    """Measure one model's geometry."""
    arguments = command.parser(__doc__)
    command.add_activations(arguments)
    arguments.add_argument("--entropy", type=Path, required=True, help="table of entropies to write")
    arguments.add_argument("--cka", type=Path, required=True, help="table of CKA values to write")
    arguments.add_argument("--gram", type=Path, required=True, help="table of Gram inner products to write")
    arguments.add_argument("--turning", type=Path, required=True, help="table of turning points to write")
    arguments.add_argument("--filter-effect", type=Path, required=True, help="table of the filter's effect to write")
    arguments.add_argument(
        "--convergence", type=Path, required=True, help="table of growing numbers of tokens to write"
    )
    arguments.add_argument("--lens", type=Path, required=True, help="table of logit-lens entropies to write")
    arguments.add_argument("--shards", type=Path, nargs="+", help="Gram products that other jobs formed, in order")
    arguments.add_argument("--shards-fingerprint", help="fingerprint that these must have")
    args = arguments.parse_args()
    config = read_spec(GeometryConfig, args.spec)
    dump = open_dump(args.activations, command.activations_origin(args))
    shards = Shards(args.shards, Origin(args.model, args.shards_fingerprint)) if args.shards else None
    args.gram.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".states.", dir=args.gram.parent) as scratch:
        found = measure(dump, config, Path(scratch), shards)
    origin = command.origin(args)
    write_table(args.entropy, ENTROPY, found.entropy, origin)
    write_table(args.cka, CKA, found.cka, origin)
    write_table(args.gram, GRAM, found.gram, origin)
    write_table(args.turning, TURNING, found.turning, origin)
    write_table(args.filter_effect, FILTER_EFFECT, found.filter_effect, origin)
    write_table(args.convergence, CONVERGENCE, found.convergence, origin)
    write_table(args.lens, LENS, found.lens, origin)


if __name__ == "__main__":
    command.run(main)
