"""Study the token filter at many shares: entropies of prompts, and the layers that would be chosen there."""

import tempfile
from pathlib import Path

from speclayers import command
from speclayers.config import GeometryConfig
from speclayers.geometry.dump import open_dump
from speclayers.selection.filter_sweep import filter_sweep
from speclayers.specs import read_spec
from speclayers.tables import FILTER_SETS, FILTER_SWEEP, write_table


def main() -> None:
    """Sweep one model's token filter."""
    arguments = command.parser(__doc__)
    command.add_activations(arguments)
    arguments.add_argument("--filter-sweep", type=Path, required=True, help="table of entropies by share to write")
    arguments.add_argument("--filter-sets", type=Path, required=True, help="table of layers by share to write")
    args = arguments.parse_args()
    config = read_spec(GeometryConfig, args.spec)
    dump = open_dump(args.activations, command.activations_origin(args))
    args.filter_sweep.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".states.", dir=args.filter_sweep.parent) as scratch:
        found = filter_sweep(dump, config, Path(scratch))
    origin = command.origin(args)
    write_table(args.filter_sweep, FILTER_SWEEP, found.filter_sweep, origin)
    write_table(args.filter_sets, FILTER_SETS, found.filter_sets, origin)


if __name__ == "__main__":
    command.run(main)
