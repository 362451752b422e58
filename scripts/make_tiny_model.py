"""Train a small model on its teacher's responses and write it as a fetched model."""

from pathlib import Path

import torch

from speclayers import command
from speclayers.specs import TinyModelSpec, read_spec
from speclayers.tables import CORPUS, read_table
from speclayers.targets.manifest import file_hash
from speclayers.targets.staging import resumable_folder
from speclayers.targets.tiny import train_tiny_model


def main() -> None:
    """Read the arguments, train, write the model's folder."""
    parser = command.parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="folder of the fetched teacher")
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file of the teacher's responses")
    parser.add_argument("--output", type=Path, required=True, help="folder to write, manifest.json inside")
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint of a killed run")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    spec = read_spec(TinyModelSpec, arguments.spec)
    corpus = read_table(arguments.corpus, CORPUS)
    with resumable_folder(arguments.work, f"{arguments.fingerprint}-{file_hash(arguments.corpus)[:16]}") as work:
        manifest = train_tiny_model(spec.source, arguments.model, arguments.teacher, corpus, arguments.output, work)
    print(f"{manifest.name}: {manifest.architecture}, {manifest.parameters:,} parameters")


if __name__ == "__main__":
    command.run(main)
