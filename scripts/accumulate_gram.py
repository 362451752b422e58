"""Form one job's share of the Gram inner products of all pairs of layers."""

import tempfile
from pathlib import Path

from speclayers import command
from speclayers.config import GeometryConfig
from speclayers.geometry.dump import open_dump
from speclayers.geometry.shards import GRAM_SHARD, gram_shard, shard_origin, share_of
from speclayers.specs import read_spec
from speclayers.tables import write_table


def main() -> None:
    """Form one share for one model."""
    arguments = command.parser(__doc__)
    command.add_activations(arguments)
    arguments.add_argument("--shard", type=int, required=True, help="number of the share, from 0")
    arguments.add_argument("--output", type=Path, required=True, help="table of inner products to write")
    args = arguments.parse_args()
    config = read_spec(GeometryConfig, args.spec)
    share = share_of(config, args.shard)
    dump = open_dump(args.activations, command.activations_origin(args))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".states.", dir=args.output.parent) as scratch:
        found = gram_shard(dump, config, share, Path(scratch))
    write_table(args.output, GRAM_SHARD, found, shard_origin(command.origin(args), share))


if __name__ == "__main__":
    command.run(main)
