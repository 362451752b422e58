"""Train one draft head, on stored features or on those that the target makes meanwhile."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers.command import origin, parser, run
from speclayers.drafting.features import feature_source
from speclayers.drafting.head import save_head
from speclayers.drafting.processes import joined_processes, shared_work
from speclayers.drafting.tensor_files import folder_of
from speclayers.drafting.training import new_trainer
from speclayers.drafting.transfer import moved_settings, record_start, start_weights
from speclayers.errors import UserError
from speclayers.names import HeadName
from speclayers.specs import TrainSpec, read_spec
from speclayers.tables import CORPUS, TRAINING, read_table, write_table
from speclayers.targets.target import load_target


def main() -> None:
    """Parse, train, write weights, config and training table."""
    arguments = parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--corpus", type=Path, required=True, help="training responses")
    arguments.add_argument("--features", type=Path, nargs="*", default=[], help="manifests of the passes it reads")
    arguments.add_argument("--head", required=True, help="name of the head, such as eagle3.l02-l15-l27.s0")
    arguments.add_argument("--start", type=Path, help="weights of the head that a moved head starts from")
    arguments.add_argument("--output", type=Path, required=True, help="the head's model.safetensors")
    arguments.add_argument("--config", type=Path, required=True, help="the head's config.json, beside it")
    arguments.add_argument("--training", type=Path, required=True, help="training table")
    arguments.add_argument("--work", type=Path, required=True, help="folder of this head's checkpoints")
    args = arguments.parse_args()
    folder = folder_of(args.output, args.config)
    name = HeadName.parse(args.head)
    if bool(name.start) != bool(args.start):
        raise UserError(f"--start: {name} {'needs the head that it' if name.start else 'has none that it'} starts from")
    spec = read_spec(TrainSpec, args.spec)
    with joined_processes(spec.runtime.device) as processes:
        torch.set_num_threads(max(args.threads // processes.count, 1))
        target = load_target(args.target, args.model, spec.runtime)
        corpus = read_table(args.corpus, CORPUS)
        start = start_weights(args.start.parent, name, target) if args.start else None
        draft = moved_settings(spec.draft, name)
        source = feature_source(draft.features, target, corpus, args.features)
        with shared_work(processes, args.work, args.fingerprint) as checkpoints:
            trainer = new_trainer(name, target, corpus, source, draft, args.fingerprint, checkpoints, start, processes)
            trainer.run()
            if processes.main:
                record_start(trainer.head, name)
                write_table(args.training, TRAINING, trainer.table(), origin(args))
                save_head(folder, trainer.head)


if __name__ == "__main__":
    run(main)
