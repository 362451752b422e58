"""Choose the head of a model to export, and say which engines serve it."""

from pathlib import Path

from speclayers import command
from speclayers.analysis.recommended import recommended_set
from speclayers.analysis.study import read_study
from speclayers.analysis.warehouse import open_database
from speclayers.drafting.head import read_head_config
from speclayers.drafting.tensor_files import CONFIG_FILE
from speclayers.export.engine import served_target
from speclayers.export.preflight import preflight, report, report_text
from speclayers.files import write_json, write_text
from speclayers.names import HeadName, layers_of
from speclayers.specs import RecommendHeadSpec, read_spec
from speclayers.targets.manifest import read_manifest


def main() -> None:
    """Read the study's verdicts, look at the head, write both."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--database", type=Path, required=True, help="the study's DuckDB file")
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--heads", type=Path, required=True, help="folder of the model's trained heads")
    arguments.add_argument("--seed", type=int, required=True, help="training seed of the head to export")
    arguments.add_argument("--output", type=Path, required=True, help="JSON file to write")
    arguments.add_argument("--text", type=Path, required=True, help="the same in words, text file to write")
    args = arguments.parse_args()
    spec = read_spec(RecommendHeadSpec, args.spec)
    with open_database(args.database) as connection:
        found = recommended_set(read_study(connection), args.model)
    name = str(HeadName(layers=tuple(sorted(layers_of(found.layer_set))), seed=args.seed))
    head = read_head_config(args.heads / name / CONFIG_FILE)
    fits = preflight(spec.engines, head, served_target(args.target, read_manifest(args.target)))
    told = report(args.model, name, found.reason, fits)
    write_json(args.output, told)
    write_text(args.text, report_text(told))


if __name__ == "__main__":
    command.run(main)
