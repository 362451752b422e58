"""Train Medusa's heads, on stored features or on those that the target makes meanwhile."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers.command import origin, parser, run
from speclayers.drafting.features import feature_source
from speclayers.drafting.medusa_heads import save_medusa
from speclayers.drafting.medusa_training import new_medusa_trainer
from speclayers.drafting.processes import joined_processes, shared_work
from speclayers.drafting.tensor_files import folder_of
from speclayers.names import RivalName
from speclayers.specs import TrainSpec, read_spec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from speclayers.targets.target import load_target


def main() -> None:
    """Parse, train, calibrate, write weights, config and training table."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--corpus", type=Path, required=True, help="training responses")
    arguments.add_argument(
        "--features", type=Path, nargs="*", default=[], help="manifest of a pass, for the last layer"
    )
    arguments.add_argument("--rival", required=True, help="name of the drafter's run, such as medusa.s0")
    arguments.add_argument("--output", type=Path, required=True, help="the heads' model.safetensors")
    arguments.add_argument("--config", type=Path, required=True, help="the heads' config.json, beside it")
    arguments.add_argument("--training", type=Path, required=True, help="training table")
    arguments.add_argument("--work", type=Path, required=True, help="folder of this training's checkpoints")
    args = arguments.parse_args()
    folder, name = folder_of(args.output, args.config), RivalName.parse(args.rival)
    spec = read_spec(TrainSpec, args.spec)
    with joined_processes(spec.runtime.device) as processes:
        torch.set_num_threads(max(args.threads // processes.count, 1))
        target = load_target(args.target, args.model, spec.runtime)
        corpus = read_table(args.corpus, CORPUS)
        source = feature_source(spec.draft.features, target, corpus, args.features)
        with shared_work(processes, args.work, args.fingerprint) as checkpoints:
            trainer = new_medusa_trainer(
                name, target, corpus, source, spec.draft, args.fingerprint, checkpoints, processes
            )
            trainer.run()
            if processes.main:
                trainer.calibrate()
                write_table(args.training, TRAINING, trainer.table(), origin(args))
                save_medusa(folder, trainer.head)


if __name__ == "__main__":
    run(main)
