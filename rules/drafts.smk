rule extract_features:
    input:
        corpus=layout.corpus("{model}", "training"),
        target=layout.manifest("{model}"),
    output:
        manifest=layout.features("{model}", "{layers}"),
    log:
        layout.log("extract_features", "{model}", "{layers}"),
    benchmark:
        layout.benchmark("extract_features", "{model}", "{layers}")
    priority: PRIORITY["extract_features"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("extract_features"),
        runtime=minutes_of("extract_features"),
        gpu=gpus_of("extract_features"),
    params:
        spec=spec_of("extract_features"),
        identity=identity_of("extract_features"),
        target=folder_of("target"),
        work=lambda wildcards: layout.work(wildcards.model, f"features-{wildcards.layers}"),
    shell:
        "python scripts/extract_features.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --corpus {input.corpus} --layers {wildcards.layers} --work {params.work}"
        " --output {output.manifest} > {log} 2>&1"


rule train_draft:
    input:
        features=features_of,
        start=start_of,
        corpus=layout.corpus("{model}", "training"),
        target=layout.manifest("{model}"),
    output:
        head=layout.head("{model}", "{head}", "model.safetensors"),
        config=layout.head("{model}", "{head}", "config.json"),
        training=layout.head("{model}", "{head}", "training.parquet"),
    log:
        layout.log("train_draft", "{model}", "{head}"),
    benchmark:
        layout.benchmark("train_draft", "{model}", "{head}")
    wildcard_constraints:
        head=HEAD_PATTERN,
    priority: PRIORITY["train_draft"]
    conda:
        "../envs/model.yaml"
    threads: study.draft.processes
    resources:
        mem_mb=memory_of("train_draft"),
        runtime=minutes_of("train_draft"),
        gpu=gpus_of("train_draft"),
    params:
        launch=python_of(study.draft.processes),
        spec=spec_of("train_draft"),
        identity=identity_of("train_draft"),
        target=folder_of("target"),
        start=lambda wildcards, input: f"--start {input.start}" if input.start else "",
        work=lambda wildcards: layout.work(wildcards.model, wildcards.head),
    shell:
        "{params.launch} scripts/train_draft.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --corpus {input.corpus} --features {input.features} --head {wildcards.head} {params.start}"
        " --work {params.work} --output {output.head} --config {output.config}"
        " --training {output.training} > {log} 2>&1"


rule continue_draft:
    input:
        start=layout.head("{model}", "pretrained.{name}", "model.safetensors"),
        start_config=layout.head("{model}", "pretrained.{name}", "config.json"),
        corpus=layout.corpus("{model}", "training"),
        target=layout.manifest("{model}"),
    output:
        head=layout.head("{model}", CONTINUED, "model.safetensors"),
        config=layout.head("{model}", CONTINUED, "config.json"),
        training=layout.head("{model}", CONTINUED, "training.parquet"),
    log:
        layout.log("continue_draft", "{model}", CONTINUED),
    benchmark:
        layout.benchmark("continue_draft", "{model}", CONTINUED)
    wildcard_constraints:
        name=any_of(study.pretrained),
        percent=r"\d+",
        seed=r"\d+",
    priority: PRIORITY["train_draft"]
    conda:
        "../envs/model.yaml"
    threads: study.draft.processes
    resources:
        mem_mb=memory_of("continue_draft"),
        runtime=minutes_of("continue_draft"),
        gpu=gpus_of("continue_draft"),
    params:
        launch=python_of(study.draft.processes),
        spec=spec_of("continue_draft"),
        identity=identity_of("continue_draft"),
        target=folder_of("target"),
        head=CONTINUED,
        work=lambda wildcards: layout.work(wildcards.model, CONTINUED.format(**dict(wildcards))),
    shell:
        "{params.launch} scripts/continue_draft.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --corpus {input.corpus} --head {params.head} --start {input.start} --work {params.work}"
        " --output {output.head} --config {output.config} --training {output.training} > {log} 2>&1"
