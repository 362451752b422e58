"""Write a trained head as the folder that an engine serves."""

from pathlib import Path

from speclayers import command
from speclayers.analysis.recommended import measured_acceptance
from speclayers.analysis.study import read_study
from speclayers.analysis.warehouse import open_database
from speclayers.drafting.head import head_from_tensors, read_head_config
from speclayers.drafting.tensor_files import WEIGHTS_FILE, read_tensors
from speclayers.export.card import Measured
from speclayers.export.engine import served_target
from speclayers.export.folder import export_head
from speclayers.export.layer_ids import ENGINES
from speclayers.specs import ExportSpec, read_spec
from speclayers.targets.manifest import read_manifest


def main() -> None:
    """Read the head and what was measured of it, write the folder, say how it fits."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--head", type=Path, required=True, help="the head's config.json; its weights lie beside")
    arguments.add_argument("--engine", required=True, help=f"engine that serves it: {', '.join(ENGINES)}")
    arguments.add_argument("--database", type=Path, help="the study's DuckDB file, for the model card")
    arguments.add_argument("--output", type=Path, required=True, help="folder to write")
    args = arguments.parse_args()
    spec = read_spec(ExportSpec, args.spec)
    config = read_head_config(args.head)
    weights = args.head.with_name(WEIGHTS_FILE)
    head = head_from_tensors(config, read_tensors(weights), weights)
    measured = []
    if args.database:
        with open_database(args.database) as connection:
            rows = measured_acceptance(read_study(connection), args.model, args.head.parent.name)
        measured = [Measured(**row) for row in rows]
    target = served_target(args.target, read_manifest(args.target))
    print(export_head(args.engine, config, head.state_dict(), target, args.output, spec, measured).text())


if __name__ == "__main__":
    command.run(main)
