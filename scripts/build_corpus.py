"""Let a model answer one split's prompts."""

from pathlib import Path

import torch

from speclayers import command
from speclayers.config import DatasetPrompts, FilePrompts, SplitConfig
from speclayers.corpus.generator import generate_prompts
from speclayers.corpus.prompts import Prompt, read_dataset, read_prompts
from speclayers.corpus.responses import generate_responses
from speclayers.specs import CorpusSpec, read_spec
from speclayers.tables import CORPUS, write_table
from speclayers.targets.staging import resumable_folder
from speclayers.targets.target import load_target


def main() -> None:
    """Read the arguments, answer the prompts, write the corpus."""
    parser = command.parser(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    parser.add_argument("--output", type=Path, required=True, help="Parquet file to write")
    parser.add_argument("--work", type=Path, required=True, help="folder of shards that let a killed run continue")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    spec = read_spec(CorpusSpec, arguments.spec)
    prompts = choose_prompts(spec.split)
    target = load_target(arguments.target, arguments.model, spec.runtime)
    with resumable_folder(arguments.work, arguments.fingerprint) as work:
        corpus = generate_responses(target, prompts, spec.split, spec.batch_size, work)
        write_table(arguments.output, CORPUS, corpus, command.origin(arguments))
    tokens = sum(map(len, corpus["input_ids"])) - int(corpus["response_start"].sum())
    print(f"{target.name}: {len(corpus)} responses, {tokens} tokens")


def choose_prompts(split: SplitConfig) -> list[Prompt]:
    """Return a split's prompts, from the first on."""
    source = split.prompts
    if isinstance(source, FilePrompts):
        return _first(read_prompts(Path(source.path)), split.count, source.path)
    if isinstance(source, DatasetPrompts):
        return _first(read_dataset(source.name, source.split, source.column), split.count, source.name)
    return generate_prompts(split.count, split.seed)


def _first(prompts: list[Prompt], count: int, source: str) -> list[Prompt]:
    if len(prompts) < count:
        print(f"{source}: holds {len(prompts)} prompts, fewer than the {count} asked for; all are used")
    return prompts[:count]


if __name__ == "__main__":
    command.run(main)
