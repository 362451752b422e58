"""Search the attention and MLPs that a drafter skips, on calibration prompts."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.decoding.skip_search import Searched, chosen, search_skips
from speclayers.drafting.rival import Given
from speclayers.drafting.rivals.self_sd import Options
from speclayers.files import write_json
from speclayers.names import RivalName
from speclayers.reading import checked_options
from speclayers.specs import SkipSearchSpec, read_spec
from speclayers.tables import CORPUS, SKIP_SEARCH, read_table, write_table
from speclayers.targets.staging import resumable_folder
from speclayers.targets.target import load_target


def main() -> None:
    """Load the model, search, write every trial and the best set."""
    arguments = command.parser(__doc__)
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--rival", required=True, help="name of the drafter's run, such as self_sd.s0")
    arguments.add_argument("--corpus", type=Path, required=True, help="calibration responses")
    arguments.add_argument("--work", type=Path, required=True, help="folder of the sets tried so far")
    arguments.add_argument("--search", type=Path, required=True, help="table of the trials to write (Parquet)")
    arguments.add_argument("--skipped", type=Path, required=True, help="chosen set to write, JSON")
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    spec, name = read_spec(SkipSearchSpec, args.spec), RivalName.parse(args.rival)
    target = load_target(args.target, args.model, spec.runtime)
    given = Given(target, name, spec.rival.draft_length, spec.rival.nodes, {})
    options = checked_options(given.key, Options, spec.rival.options)
    searched = Searched(
        given.key, lambda skipped: options.drafter(given, skipped), options.free(given), given.seed, options
    )
    with resumable_folder(args.work, args.fingerprint) as folder:
        table = search_skips(target, read_table(args.corpus, CORPUS), searched, folder)
        write_table(args.search, SKIP_SEARCH, table, command.origin(args))
        write_json(args.skipped, chosen(table))


if __name__ == "__main__":
    command.run(main)
