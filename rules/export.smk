rule import_draft:
    input:
        target=layout.manifest("{model}"),
        files=pretrained_files,
    output:
        head=layout.head("{model}", "pretrained.{name}", "model.safetensors"),
        config=layout.head("{model}", "pretrained.{name}", "config.json"),
    log:
        layout.log("import_draft", "{model}", "pretrained.{name}"),
    benchmark:
        layout.benchmark("import_draft", "{model}", "pretrained.{name}")
    wildcard_constraints:
        name=any_of(study.pretrained),
    conda:
        "../envs/export.yaml"
    resources:
        mem_mb=memory_of("import_draft"),
        runtime=minutes_of("import_draft"),
    params:
        spec=lambda wildcards: specs.pretrained(study, wildcards.name).canonical(),
        code=identities.code("import_draft"),
        target=folder_of("target"),
    shell:
        "python scripts/import_draft.py --spec {params.spec:q} --model {wildcards.model} --fingerprint {params.code}"
        " --threads {threads} --name {wildcards.name} --target {params.target} --output {output.head}"
        " --config {output.config} > {log} 2>&1"


# which head, and which engines serve it, is known once the study is; only export_model waits for it
checkpoint recommend_head:
    input:
        database=layout.database,
        target=layout.manifest("{model}"),
    output:
        recommended=layout.recommended_head("{model}"),
        text=layout.recommended_head("{model}", "txt"),
    log:
        layout.log("recommend_head", "{model}"),
    conda:
        "../envs/export.yaml"
    resources:
        mem_mb=lambda wildcards, attempt: 2000 * attempt,
        runtime=lambda wildcards, attempt: 20 * attempt,
    params:
        spec=lambda wildcards: specs.recommend_head(study, wildcards.model).canonical(),
        code=identities.code("recommend_head"),
        target=folder_of("target"),
        heads=lambda wildcards: Path(layout.head(wildcards.model, "any", "any")).parent.parent.as_posix(),
        seed=study.draft.seeds[0],
    shell:
        "python scripts/recommend_head.py --spec {params.spec:q} --model {wildcards.model} --fingerprint {params.code}"
        " --threads {threads} --database {input.database} --target {params.target} --heads {params.heads}"
        " --seed {params.seed} --output {output.recommended} --text {output.text} > {log} 2>&1"


rule export_draft:
    input:
        head=layout.head("{model}", "{head}", "model.safetensors"),
        config=layout.head("{model}", "{head}", "config.json"),
        target=layout.manifest("{model}"),
        database=measured_database,
    output:
        folder=directory(layout.exported("{model}", "{head}", "{engine}")),
    log:
        layout.log("export_draft", "{model}", "{head}", "{engine}"),
    conda:
        "../envs/export.yaml"
    resources:
        mem_mb=lambda wildcards, attempt: 6000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
    params:
        spec=lambda wildcards: specs.export(study, wildcards.model).canonical(),
        code=identities.code("export_draft"),
        target=folder_of("target"),
        database=lambda wildcards, input: f"--database {input.database}" if input.database else "",
    shell:
        "python scripts/export_draft.py --spec {params.spec:q} --model {wildcards.model} --fingerprint {params.code}"
        " --threads {threads} --target {params.target} --head {input.config} --engine {wildcards.engine}"
        " {params.database} --output {output.folder} > {log} 2>&1"


rule export_model:
    input:
        text=layout.recommended_head("{model}", "txt"),
        folders=recommended_folders,
    output:
        preflight=layout.preflight("{model}"),
    log:
        layout.log("export_model", "{model}"),
    conda:
        "../envs/export.yaml"
    resources:
        mem_mb=500,
        runtime=10,
    shell:
        "cp {input.text} {output.preflight} 2> {log}"
