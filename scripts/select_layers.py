"""Let every selector of the study choose its layers, and name the heads to train."""

from pathlib import Path

from speclayers import command
from speclayers.files import write_json
from speclayers.geometry.dump import open_dump
from speclayers.selection.evidence import gather
from speclayers.selection.select import heads, select, selections_frame, trace
from speclayers.selection.selector import requests
from speclayers.specs import SelectionSpec, read_spec
from speclayers.tables import SELECTIONS, write_table


def main() -> None:
    """Select the layers of one model."""
    arguments = command.parser(__doc__)
    command.add_activations(arguments)
    arguments.add_argument("--entropy", type=Path, required=True, help="table of entropies")
    arguments.add_argument("--cka", type=Path, required=True, help="table of CKA values")
    arguments.add_argument("--gram", type=Path, required=True, help="table of Gram inner products")
    arguments.add_argument("--selections", type=Path, required=True, help="table of selections to write")
    arguments.add_argument("--trace", type=Path, required=True, help="every selector's steps to write, JSON")
    arguments.add_argument("--heads", type=Path, required=True, help="layer sets to train heads on to write, JSON")
    args = arguments.parse_args()
    spec = read_spec(SelectionSpec, args.spec)
    dump = open_dump(args.activations, command.activations_origin(args))
    requests(spec.selection.selectors, dump.n_layers)  # wrong settings end before the long computations
    evidence = gather(dump, args.entropy, args.cka, args.gram, spec.geometry)
    selected = select(spec.selection, evidence)
    write_table(args.selections, SELECTIONS, selections_frame(selected), command.origin(args))
    write_json(args.trace, trace(selected))
    write_json(args.heads, heads(args.model, selected))


if __name__ == "__main__":
    command.run(main)
