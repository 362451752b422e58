"""What all rules share: the checked config, where things lie, fingerprints, resources."""

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

from speclayers import specs
from speclayers.config import TrainedSource
from speclayers.export.layer_ids import ENGINES
from speclayers.names import (
    HEAD_PATTERN,
    LAYERS_PATTERN,
    PRETRAINED_PATTERN,
    SHAPE_PATTERN,
    TOP_LAYER,
    HeadName,
    RivalName,
    layers_name,
    layers_of,
    temperature_name,
)
from speclayers.planning.costs import Costs
from speclayers.planning.identity import Identities, add_records
from speclayers.planning.fanout import (
    LAYERS_A_PASS,
    LayerSet,
    acceptance_runs,
    moved_heads,
    pretrained_heads,
    rival_runs,
    speed_runs,
    timed_rival_runs,
    trained_heads,
)
from speclayers.planning.options import refuse_unfit_options
from speclayers.reading import parse_study, refuse_missing_files, refuse_repeated_keys, refuse_unwritable
from speclayers.errors import UserError
from speclayers.fingerprint import rival_files, rival_jobs, rival_needs, selector_files
from speclayers.layout import GEOMETRY_TABLES, SPLITS, SUMMARY_TABLES, Layout
from speclayers.machine import ran_on
from speclayers.files import read_json

try:
    for file in workflow.configfiles:
        refuse_repeated_keys(Path(file))
    study = parse_study(config)
    for selector in study.selection.selectors:
        selector_files(selector.name)
    for rival in study.rivals:
        rival_files(rival.name)
    layout = Layout(study.study.name)
    refuse_missing_files(study, layout)
    if workflow.is_main_process:  # and not in each job, which parses this file again
        refuse_unfit_options(study)
    if not any(re.fullmatch(r"--dry-?run|-[a-z]*n[a-z]*", word) for word in sys.argv):  # which writes nothing
        refuse_unwritable(*map(Path, (layout.root, "logs", ".snakemake")))
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)

# the jobs' `python` is the one that runs this workflow, whether or not its environment is activated
os.environ.update(PATH=os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path())))
# a cluster's job reads this file again, on its node: the profile puts what is told there into the job's measurement
os.environ.update(SPECLAYERS_RAN_ON=ran_on())

trained = [name for name, model in study.models.items() if isinstance(model.source, TrainedSource)]
fetched = [name for name in study.models if name not in trained]


def any_of(names):
    """A wildcard constraint that these names match, and nothing when there are none."""
    return "|".join(map(re.escape, names)) or r"(?!)"


wildcard_constraints:
    model="|".join(map(re.escape, study.models)),
    head=f"{HEAD_PATTERN}|{PRETRAINED_PATTERN}",
    engine="|".join(ENGINES),
    rival=any_of(str(run) for rival in study.rivals for run in rival.runs()),
    layers=f"{LAYERS_PATTERN}|{TOP_LAYER}",
    split="|".join(SPLITS),
    temperature=r"\d+(\.\d+)?",
    nodes=SHAPE_PATTERN,
    shard=r"\d+",


# files of the person's own that the config names: their contents count, not only their names
question_file = [path] if (path := getattr(study.acceptance.questions, "path", None)) else []
prompts_file = {
    split: [prompts.path] if prompts.source == "file" else []
    for split, prompts in ((split, getattr(study.corpus, split).prompts) for split in SPLITS)
}

# ---------------------------------------------------------------- what a result depends on

identities = Identities(study, Path(workflow.basedir, "scripts"))


def spec_of(stage):
    """A params function: the stage's slice as JSON."""
    return lambda wildcards: identities.spec(in_split(stage, wildcards), wildcards.model)


def identity_of(stage):
    """A params function: the stage's fingerprint."""
    return lambda wildcards: identities.identity(in_split(stage, wildcards), wildcards.model)


def folder_of(name):
    """A params function: the folder that an input file lies in."""
    return lambda wildcards, input: Path(getattr(input, name)).parent.as_posix()


ANY_MODEL = study.study.models[0]  # where a stage is the whole study's


def in_split(stage, wildcards):
    return f"{stage}.{wildcards.split}" if stage == "build_corpus" else stage


def gram_shards(wildcards):
    """What other jobs left of the Gram products, in their order; nothing where one job forms them all."""
    shards = study.geometry.shards
    return [layout.gram_shard(wildcards.model, shard) for shard in range(shards)] if shards > 1 else []


def shards_option(wildcards, input):
    """The same as options of the script."""
    if not input.shards:
        return ""
    return f"--shards {input.shards} --shards-fingerprint {identities.identity('accumulate_gram', wildcards.model)}"


# what a job of several that share a run's questions has in its paths, and as options of its script
SHARDED = study.acceptance.shards > 1
SHARD = ("{shard}",) if SHARDED else ()


def shard_option(wildcards):
    """The range of questions that is a job's own."""
    return f"--shard {wildcards.shard} --shards {study.acceptance.shards}" if SHARDED else ""


def shard_work(name):
    """A params function: the work folder of a run, or of a job's own part of it."""
    return lambda wildcards: layout.work(wildcards.model, "-".join((name, *SHARD)).format(**dict(wildcards.items())))


# a head from elsewhere that is trained on, as `names.PretrainedName` writes it
CONTINUED = "pretrained.{name}.p{percent}.s{seed}"


def teacher_of(model):
    return study.models[model].source.teacher


# ---------------------------------------------------------------- resources

# early stages first, whichever model they belong to: each opens the way for many jobs that can run side by side
PRIORITY = {
    "fetch_model": 60,
    **dict.fromkeys(("build_teacher", "make_tiny_model", "build_corpus"), 50),
    **dict.fromkeys(
        ("dump_activations", "accumulate_gram", "measure_geometry", "select_layers", "extract_features"), 40
    ),
    "screen_layers": 35,
    **dict.fromkeys(("train_draft", "train_medusa"), 30),
}


costs = Costs(study, layout)


def memory_of(stage):
    """A resources function: the memory that a job asks for, in MB."""
    return lambda wildcards, attempt: costs.memory(stage, dict(wildcards), attempt)


def minutes_of(stage):
    """A resources function: the time that a job asks for."""
    return lambda wildcards, attempt: costs.minutes(stage, dict(wildcards), attempt)


def gpus_of(stage):
    """A resources function: the GPUs that a job asks for; none where its model's device is the processor."""
    return lambda wildcards: costs.of(stage, dict(wildcards)).gpus


# torch is wanted there only on a GPU
gram_environment = "../envs/geometry.yaml" if study.geometry.device == "cpu" else "../envs/model.yaml"


def python_of(processes):
    """The command that starts a script in so many processes on one machine."""
    return "python" if processes == 1 else f"python -m torch.distributed.run --standalone --nproc-per-node {processes}"


def whole_machine(wildcards):
    """Every core that this run has, so that nothing else disturbs a timed job; on a cluster, as many as a job asks for."""
    return workflow.resource_settings.cores or 8  # `workflow.cores` fails where there are only jobs to count


# ---------------------------------------------------------------- what a run says when it ends


def where_results_lie():
    """The study's folder, and those of its pages that are there."""
    pages = (layout.answer, layout.report, layout.layers_page, layout.summary_page, layout.database)
    found = [path for path in pages if Path(path).exists()]
    return "\n".join((f"\nThe run ended well. Results lie in {layout.root}/:", *(f"  {path}" for path in found)))


def what_to_do_now():
    """How to read what failed, and how to go on."""
    return f"""
The run ended with failed jobs. Above, under each of them, is its log, which also lies in logs/{study.study.name}/.
  The last line begins with "error:": it says what to mend: which key, file or layer, and what is expected.
  The log ends in the middle: the job was killed, mostly for memory; ask for more, or give --resources mem_mb=... less.
  A traceback: a bug; please report it with the log.
What is finished stays. The same command again goes on where this run stopped; docs/reruns.md says what is kept."""
