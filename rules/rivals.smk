"""Drafters that need no head: measured like the heads, on the same questions."""


def rival_files_of(model):
    """What is measured of a model's rivals."""
    counted = [
        layout.acceptance(model, *run, table) for run in rival_runs(study, model) for table in ("cycles", "turns")
    ]
    return counted + [layout.speed(model, *run) for run in timed_rival_runs(study, model)]


def rival_options(wildcards):
    """The same as options of the script that summarises them."""
    model = wildcards.model
    return [
        *(
            f"--acceptance {rival}:{temperature}:{nodes}="
            f"{Path(layout.acceptance(model, rival, temperature, nodes, 'cycles')).parent}"
            for rival, temperature, nodes in rival_runs(study, model)
        ),
        *(
            f"--speed {rival}:{temperature}:{nodes}={layout.speed(model, rival, temperature, nodes)}"
            for rival, temperature, nodes in timed_rival_runs(study, model)
        ),
    ]


# Named by the targets, too, as the screenings are: else a drafter added to a finished study would not be looked for.
rival_results = [file for model in study.study.models for file in rival_files_of(model)]


def needs_of(wildcards):
    """Files that a drafter asks for, each under its name."""
    name, model = RivalName.parse(wildcards.rival), wildcards.model
    made = {"cka": layout.geometry(model, "cka")}
    return {need: made[need] for need in rival_needs(name.kind)}


def needs_options(wildcards, input):
    """The same as options of the script."""
    return [f"--{need} {input[need]}" for need in needs_of(wildcards)]


def rival_identity(stage):
    """A params function: the fingerprint of a drafter's run, with the code of the drafter itself."""

    def found(wildcards):
        return identity(f"{stage}.{RivalName.parse(wildcards.rival).label}", wildcards.model)

    return found


def rival_spec(stage):
    """A params function: the slice of a drafter's run as JSON."""

    def found(wildcards):
        return stage_spec(f"{stage}.{RivalName.parse(wildcards.rival).label}", wildcards.model).canonical()

    return found


rule measure_rival:
    input:
        unpack(needs_of),
        baseline=layout.baseline("{model}", "0"),
        target=layout.manifest("{model}"),
    output:
        cycles=layout.acceptance("{model}", "{rival}", "{temperature}", "{nodes}", "cycles"),
        turns=layout.acceptance("{model}", "{rival}", "{temperature}", "{nodes}", "turns"),
    log:
        layout.log("measure_rival", "{model}", "{rival}", "T{temperature}-n{nodes}"),
    benchmark:
        layout.benchmark("measure_rival", "{model}", "{rival}", "T{temperature}-n{nodes}")
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("measure_rival"),
        runtime=minutes_of("measure_rival"),
        gpu=gpus_of("measure_rival"),
    params:
        spec=rival_spec("measure_rival"),
        identity=rival_identity("measure_rival"),
        target=folder_of("target"),
        needs=needs_options,
        work=lambda wildcards: layout.work(wildcards.model, f"{wildcards.rival}-T{wildcards.temperature}"),
    shell:
        "python scripts/measure_rival.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target} --rival {wildcards.rival}"
        " {params.needs} --baseline {input.baseline} --temperature {wildcards.temperature}"
        " --work {params.work} --cycles {output.cycles} --turns {output.turns} > {log} 2>&1"


rule time_rival:
    input:
        unpack(needs_of),
        baseline=layout.baseline("{model}", "0"),
        target=layout.manifest("{model}"),
    output:
        speed=layout.speed("{model}", "{rival}", "{temperature}", "{nodes}"),
    log:
        layout.log("time_rival", "{model}", "{rival}", "T{temperature}-n{nodes}"),
    benchmark:
        layout.benchmark("time_rival", "{model}", "{rival}", "T{temperature}-n{nodes}")
    conda:
        "../envs/model.yaml"
    threads: whole_machine
    resources:
        mem_mb=memory_of("time_rival"),
        runtime=minutes_of("time_rival"),
        gpu=gpus_of("time_rival"),
    params:
        spec=rival_spec("time_rival"),
        identity=rival_identity("time_rival"),
        target=folder_of("target"),
        needs=needs_options,
    shell:
        "python scripts/time_rival.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target} --rival {wildcards.rival}"
        " {params.needs} --baseline {input.baseline} --temperature {wildcards.temperature}"
        " --output {output.speed} > {log} 2>&1"
