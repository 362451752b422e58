"""Drafters of other kinds than the heads: measured like those, on the same questions."""


rule train_medusa:
    input:
        features=top_features_of,
        corpus=layout.corpus("{model}", "training"),
        target=layout.manifest("{model}"),
    output:
        weights=layout.rival("{model}", "{rival}", "model.safetensors"),
        config=layout.rival("{model}", "{rival}", "config.json"),
        training=layout.rival("{model}", "{rival}", "training.parquet"),
    log:
        layout.log("train_medusa", "{model}", "{rival}"),
    benchmark:
        layout.benchmark("train_medusa", "{model}", "{rival}")
    priority: PRIORITY["train_medusa"]
    conda:
        "../envs/model.yaml"
    threads: study.draft.processes
    resources:
        mem_mb=memory_of("train_medusa"),
        runtime=minutes_of("train_medusa"),
        gpu=gpus_of("train_medusa"),
    params:
        launch=python_of(study.draft.processes),
        spec=rival_spec("train_medusa"),
        identity=rival_identity("train_medusa"),
        target=folder_of("target"),
        work=lambda wildcards: layout.work(wildcards.model, wildcards.rival),
    shell:
        "{params.launch} scripts/train_medusa.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --corpus {input.corpus} --features {input.features} --rival {wildcards.rival}"
        " --work {params.work} --output {output.weights} --config {output.config}"
        " --training {output.training} > {log} 2>&1"


rule search_skips:
    input:
        corpus=layout.corpus("{model}", "calibration"),
        target=layout.manifest("{model}"),
    output:
        search=layout.rival("{model}", "{rival}", "search.parquet"),
        skipped=layout.rival("{model}", "{rival}", "skipped.json"),
    log:
        layout.log("search_skips", "{model}", "{rival}"),
    benchmark:
        layout.benchmark("search_skips", "{model}", "{rival}")
    conda:
        "../envs/model.yaml"
    threads: threads_of_search
    resources:
        mem_mb=memory_of("search_skips"),
        runtime=minutes_of("search_skips"),
        gpu=gpus_of("search_skips"),
    params:
        spec=rival_spec("search_skips"),
        identity=rival_identity("search_skips"),
        target=folder_of("target"),
        work=lambda wildcards: layout.work(wildcards.model, f"search-{wildcards.rival}"),
    shell:
        "python scripts/search_skips.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target} --rival {wildcards.rival}"
        " --corpus {input.corpus} --work {params.work} --search {output.search} --skipped {output.skipped} > {log} 2>&1"


rule measure_rival:
    input:
        unpack(needs_of),
        baseline=layout.baseline("{model}", "0"),
        target=layout.manifest("{model}"),
    output:
        **{
            table: (
                layout.acceptance_shard("{model}", "{rival}", "{temperature}", "{nodes}", table, "{shard}")
                if SHARDED
                else layout.acceptance("{model}", "{rival}", "{temperature}", "{nodes}", table)
            )
            for table in ("cycles", "turns")
        },
    log:
        layout.log("measure_rival", "{model}", "{rival}", "T{temperature}-n{nodes}", *SHARD),
    benchmark:
        layout.benchmark("measure_rival", "{model}", "{rival}", "T{temperature}-n{nodes}", *SHARD)
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
        shard=rival_shard_option,
        work=shard_work("{rival}-T{temperature}"),
    shell:
        "python scripts/measure_rival.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target} --rival {wildcards.rival}"
        " {params.needs} --baseline {input.baseline} --temperature {wildcards.temperature}"
        " {params.shard} --work {params.work} --cycles {output.cycles} --turns {output.turns} > {log} 2>&1"


if SHARDED:

    rule merge_rival:
        input:
            unpack(rival_shards),
        output:
            cycles=layout.acceptance("{model}", "{rival}", "{temperature}", "{nodes}", "cycles"),
            turns=layout.acceptance("{model}", "{rival}", "{temperature}", "{nodes}", "turns"),
        log:
            layout.log("merge_rival", "{model}", "{rival}", "T{temperature}-n{nodes}"),
        localrule: True
        conda:
            "../envs/report.yaml"
        params:
            code=identities.code("merge_shards"),
            identity=rival_identity("measure_rival"),
        shell:
            "python scripts/merge_shards.py --model {wildcards.model} --fingerprint {params.identity}"
            " --cycles {output.cycles} {input.cycles} --turns {output.turns} {input.turns} > {log} 2>&1"


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
