"""The fan-out as files: what `speclayers.planning.fanout` lists, where it lies, and what waits for what."""


def sets_of(wildcards):
    """The layer sets to train on, known once a model's layers are chosen."""
    chosen = read_json(Path(checkpoints.select_layers.get(**wildcards).output.heads))["heads"]
    return [LayerSet(tuple(head["layers"]), tuple(head["selectors"])) for head in chosen]


def heads_of(wildcards):
    """Names of one model's heads: layer sets × seeds."""
    return trained_heads(study, sets_of(wildcards))


def choice_in_words(selector):
    """Say what a selector is asked for; a dry run ends before layers are chosen, pinned sets are known by then."""
    sets = selector.options.get("sets") or [f"k = {k}" for k in selector.k]
    only = f" for {', '.join(selector.models)}" if selector.models else ""
    return f"{selector.name} {', '.join(map(str, sets))}{only}"


choices_in_words = "; ".join(map(choice_in_words, study.selection.selectors))


def screened_heads_of(wildcards):
    """Heads of the layer set that won the screening, where there is one and no selector's heads are the same."""
    if study.screen is None:
        return []
    won = read_json(Path(checkpoints.screen_layers.get(**wildcards).output.winner))
    heads = trained_heads(study, [LayerSet(tuple(won["layers"]), ("screen",))])
    selected = heads_of(wildcards)
    return [head for head in heads if head not in selected]


# Named by the targets, too: Snakemake 9.27 does not look for changes in a job that waits for a checkpoint, so that a
# screening added to a finished study would be "nothing to be done".
screenings = [] if study.screen is None else expand(layout.screening("{model}"), model=study.study.models)


def moved_heads_of(wildcards):
    """Heads that keep one set's weights on another set's layers, where the study asks for them."""
    return moved_heads(study, sets_of(wildcards))


def start_of(wildcards):
    """Weights of the head that a moved head starts from; none for a head trained from scratch."""
    name = HeadName.parse(wildcards.head)
    return layout.head(wildcards.model, name.origin(), "model.safetensors") if name.start else []


def features_of(wildcards):
    """Files that hold a head's layers: what earlier passes of the target stored, and one pass for all the rest.

    A layer that a later selection adds gets a pass of its own, so that heads trained before keep their inputs.
    (An `ancient` input would not do: Snakemake 9.27 never looks at the jobs behind one that runs again.)
    Where training runs the target itself, nothing is stored.
    """
    if study.draft.features == "online":
        return []
    wanted = set(HeadName.parse(wildcards.head).layers)
    folder = Path(layout.features(wildcards.model, "any")).parent
    passes = {path.stem: layers_of(path.stem) for path in sorted(folder.glob("l*.json"))}
    chosen = Path(layout.heads(wildcards.model))
    selected = set().union(*(head["layers"] for head in (read_json(chosen)["heads"] if chosen.exists() else [])))
    stored = set().union(*passes.values())
    # what only a screening asks for gets a pass of its own: the others must not wait for it, nor change their names
    for missing in (sorted(selected - stored), sorted(wanted - selected - stored)):
        for start in range(0, len(missing), LAYERS_A_PASS):
            batch = missing[start : start + LAYERS_A_PASS]
            passes[layers_name(batch)] = set(batch)
    return [layout.features(wildcards.model, name) for name, layers in passes.items() if layers & wanted]


def top_features_of(wildcards):
    """The pass that stores the last layer, which is all that drafters without layers of their own learn from.

    A name of its own keeps the inputs of heads what they are; where those have stored the layer, nothing is run.
    """
    return [] if study.draft.features == "online" else layout.features(wildcards.model, TOP_LAYER)


def greedy_baseline(wildcards):
    """Sampled runs take their prompts from the greedy run, so that all see the same second turns."""
    return [] if wildcards.temperature == "0" else layout.baseline(wildcards.model, "0")


def results_of(heads, prefix=""):
    """An input function: everything measured of one model's heads, each kind of file under a name of its own.

    Only these inputs wait for the selection, and for the screening: heads of selectors do not wait for the latter.
    """

    def results(wildcards):
        found, model = heads(wildcards), wildcards.model
        files = {
            "heads": [layout.head(model, head, "config.json") for head in found],
            "training": [layout.head(model, head, "training.parquet") for head in found if head.seed is not None],
            "cycles": [layout.acceptance(model, *run, "cycles") for run in acceptance_runs(study, found)],
            "turns": [layout.acceptance(model, *run, "turns") for run in acceptance_runs(study, found)],
            "speed": [layout.speed(model, *run) for run in speed_runs(study, found)],
        }
        return {f"{prefix}{name}": paths for name, paths in files.items()}

    return results


def pretrained_of(wildcards):
    """Names of the heads trained elsewhere that draft for a model; they wait for no selection."""
    return pretrained_heads(study, wildcards.model)


def pretrained_files(wildcards):
    """Files of a head in a folder of the person's own: their contents count, not only their names."""
    path = study.pretrained[wildcards.name].path
    return (
        sorted(file.as_posix() for file in Path(path).iterdir() if file.suffix in {".json", ".safetensors"})
        if path
        else []
    )


def measured_database(wildcards):
    """What was measured, for a model card, once it is: a head can be exported without a study around it."""
    return [layout.database] if Path(layout.database).exists() else []


def recommended_folders(wildcards):
    """Folders of the recommended head for all engines that serve it, known once the study is."""
    chosen = read_json(Path(checkpoints.recommend_head.get(**wildcards).output.recommended))
    served = [name for name, found in chosen["engines"].items() if found["verdict"] != "refused"]
    return [layout.exported(wildcards.model, chosen["head"], engine) for engine in served]


def screening_of(wildcards):
    """The table of the screening, where the study has one."""
    return [] if study.screen is None else layout.screening(wildcards.model)


# that of temperature 0 says which questions were skipped
BASELINES = list(dict.fromkeys(map(temperature_name, (0.0, *study.acceptance.temperatures))))


def summary_options(wildcards):
    """The same as options of the script, each naming what it is: a list that grows with the study, so not in a command."""
    heads = heads_of(wildcards) + screened_heads_of(wildcards) + moved_heads_of(wildcards)
    heads += pretrained_of(wildcards)
    model = wildcards.model
    counted = [*acceptance_runs(study, heads), *rival_runs(study, model)]
    timed = [*speed_runs(study, heads), *timed_rival_runs(study, model)]
    return [
        *(f"--baseline={temperature}={layout.baseline(model, temperature)}" for temperature in BASELINES),
        *(f"--screening={path}" for path in (screening_of(wildcards),) if path),
        *(f"--head={head}={Path(layout.head(model, head, 'config.json')).parent}" for head in heads),
        *(
            f"--acceptance={drafter}:{temperature}:{nodes}="
            f"{Path(layout.acceptance(model, drafter, temperature, nodes, 'cycles')).parent}"
            for drafter, temperature, nodes in counted
        ),
        *(
            f"--speed={drafter}:{temperature}:{nodes}={layout.speed(model, drafter, temperature, nodes)}"
            for drafter, temperature, nodes in timed
        ),
    ]


def rival_files_of(model):
    """What is measured of a model's rivals."""
    counted = [
        layout.acceptance(model, *run, table) for run in rival_runs(study, model) for table in ("cycles", "turns")
    ]
    return counted + [layout.speed(model, *run) for run in timed_rival_runs(study, model)]


# Named by the targets, too, as the screenings are: else a drafter added to a finished study would not be looked for.
rival_results = [file for model in study.study.models for file in rival_files_of(model)]


def needs_of(wildcards):
    """Files that a drafter asks for, each under its name."""
    name, model = RivalName.parse(wildcards.rival), wildcards.model
    made = {
        "cka": layout.geometry(model, "cka"),
        "skipped": layout.rival(model, name, "skipped.json"),
        "weights": layout.rival(model, name, "model.safetensors"),
    }
    return {need: made[need] for need in rival_needs(name.kind)}


def needs_options(wildcards, input):
    """The same as options of the script."""
    return [f"--{need} {input[need]}" for need in needs_of(wildcards)]


def threads_of_search(wildcards):
    """The whole machine for a search that measures time; else one core."""
    return whole_machine(wildcards) if costs.skip_search(wildcards.rival).objective == "time" else 1


def jobs_of(rival):
    """How many jobs share a drafter's run: one where it learns from question to question."""
    return rival_jobs(RivalName.parse(rival).kind, study.acceptance.shards)


def rival_shards(wildcards):
    """What these jobs leave, in their order."""
    return {
        table: [
            layout.acceptance_shard(
                *(wildcards[key] for key in ("model", "rival", "temperature", "nodes")), table, shard
            )
            for shard in range(jobs_of(wildcards.rival))
        ]
        for table in ("cycles", "turns")
    }


def rival_shard_option(wildcards):
    """The range of questions that is a job's own."""
    return f"--shard {wildcards.shard} --shards {jobs_of(wildcards.rival)}" if SHARDED else ""


def rival_identity(stage):
    """A params function: the fingerprint of a drafter's run, with the code of the drafter itself."""

    def found(wildcards):
        return identities.identity(f"{stage}.{RivalName.parse(wildcards.rival).label}", wildcards.model)

    return found


def rival_spec(stage):
    """A params function: the slice of a drafter's run as JSON."""

    def found(wildcards):
        return identities.spec(f"{stage}.{RivalName.parse(wildcards.rival).label}", wildcards.model)

    return found
