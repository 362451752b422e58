"""Train on a draft head that was trained elsewhere, on features that the target makes meanwhile."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers.command import origin, parser, run
from speclayers.drafting.continuing import continued_trainer
from speclayers.drafting.features import OnlineFeatures
from speclayers.drafting.head import save_head
from speclayers.drafting.processes import joined_processes, shared_work
from speclayers.drafting.tensor_files import folder_of
from speclayers.names import PretrainedName
from speclayers.specs import TrainSpec, read_spec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from speclayers.targets.target import load_target


def main() -> None:
    """Parse, train, write weights, config and training table."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--corpus", type=Path, required=True, help="training responses")
    arguments.add_argument("--head", required=True, help="name of the head, such as pretrained.published.p10.s0")
    arguments.add_argument("--start", type=Path, required=True, help="weights of the head as it was imported")
    arguments.add_argument("--output", type=Path, required=True, help="the head's model.safetensors")
    arguments.add_argument("--config", type=Path, required=True, help="the head's config.json, beside it")
    arguments.add_argument("--training", type=Path, required=True, help="training table")
    arguments.add_argument("--work", type=Path, required=True, help="folder of this head's checkpoints")
    args = arguments.parse_args()
    folder = folder_of(args.output, args.config)
    name, spec = PretrainedName.parse(args.head), read_spec(TrainSpec, args.spec)
    with joined_processes(spec.runtime.device) as processes:
        torch.set_num_threads(max(args.threads // processes.count, 1))
        target = load_target(args.target, args.model, spec.runtime)
        corpus = read_table(args.corpus, CORPUS)
        source = OnlineFeatures(target, corpus)
        with shared_work(processes, args.work, args.fingerprint) as checkpoints:
            trainer = continued_trainer(
                name, args.start.parent, target, corpus, source, spec.draft, args.fingerprint, checkpoints, processes
            )
            trainer.run()
            if processes.main:
                write_table(args.training, TRAINING, trainer.table(), origin(args))
                save_head(folder, trainer.head)


if __name__ == "__main__":
    run(main)
