"""Take over an EAGLE-3 head that was trained elsewhere."""

from pathlib import Path

from speclayers import command
from speclayers.config import PretrainedHead
from speclayers.drafting.head import save_head
from speclayers.drafting.tensor_files import folder_of
from speclayers.errors import UserError
from speclayers.export.imported import head_folder, import_head
from speclayers.specs import read_spec
from speclayers.targets.manifest import read_manifest


def main() -> None:
    """Read the head in the layout that it has, check it against its target, write it as the study's own."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--name", required=True, help="entry of the config that describes the head")
    arguments.add_argument("--output", type=Path, required=True, help="the head's model.safetensors")
    arguments.add_argument("--config", type=Path, required=True, help="the head's config.json, beside it")
    args = arguments.parse_args()
    folder = folder_of(args.output, args.config)
    source = read_spec(PretrainedHead, args.spec)
    if source.model != args.model:
        raise UserError(f"pretrained.{args.name}.model: is '{source.model}', not '{args.model}'")
    key = f"pretrained.{args.name}"
    manifest = read_manifest(args.target)
    save_head(folder, import_head(head_folder(source, key), source.layers, key, args.target, manifest))


if __name__ == "__main__":
    command.run(main)
