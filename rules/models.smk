rule fetch_model:
    output:
        manifest=layout.manifest("{model}"),
    log:
        layout.log("fetch_model", "{model}"),
    benchmark:
        layout.benchmark("fetch_model", "{model}")
    wildcard_constraints:
        model=any_of(fetched),
    priority: PRIORITY["fetch_model"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("fetch_model"),
        runtime=minutes_of("fetch_model"),
    params:
        spec=spec_of("fetch_model"),
        identity=identity_of("fetch_model"),
        folder=lambda wildcards, output: Path(output.manifest).parent.as_posix(),
    shell:
        "python scripts/fetch_model.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --output {params.folder} > {log} 2>&1"


rule build_teacher:
    input:
        target=lambda wildcards: layout.manifest(teacher_of(wildcards.model)),
    output:
        corpus=layout.teacher("{model}"),
    log:
        layout.log("build_teacher", "{model}"),
    benchmark:
        layout.benchmark("build_teacher", "{model}")
    wildcard_constraints:
        model=any_of(trained),
    priority: PRIORITY["build_teacher"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("build_teacher"),
        runtime=minutes_of("build_teacher"),
        gpu=gpus_of("build_teacher"),
    params:
        spec=spec_of("build_teacher"),
        identity=identity_of("build_teacher"),
        target=folder_of("target"),
        work=lambda wildcards: layout.model_work(wildcards.model, "teacher"),
    shell:
        "python scripts/build_corpus.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --work {params.work} --output {output.corpus} > {log} 2>&1"


rule make_tiny_model:
    input:
        teacher=lambda wildcards: layout.manifest(teacher_of(wildcards.model)),
        corpus=layout.teacher("{model}"),
    output:
        manifest=layout.manifest("{model}"),
    log:
        layout.log("make_tiny_model", "{model}"),
    benchmark:
        layout.benchmark("make_tiny_model", "{model}")
    wildcard_constraints:
        model=any_of(trained),
    priority: PRIORITY["make_tiny_model"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("make_tiny_model"),
        runtime=minutes_of("make_tiny_model"),
    params:
        spec=spec_of("make_tiny_model"),
        identity=identity_of("make_tiny_model"),
        teacher=folder_of("teacher"),
        folder=lambda wildcards, output: Path(output.manifest).parent.as_posix(),
        work=lambda wildcards: layout.model_work(wildcards.model, "model"),
    shell:
        "python scripts/make_tiny_model.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --teacher {params.teacher}"
        " --corpus {input.corpus} --work {params.work} --output {params.folder} > {log} 2>&1"
