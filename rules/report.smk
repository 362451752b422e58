rule summarise_model:
    input:
        unpack(results_of(heads_of)),
        unpack(results_of(screened_heads_of, "screened_")),
        unpack(results_of(moved_heads_of, "moved_")),
        unpack(results_of(pretrained_of, "pretrained_")),
        rivals=lambda wildcards: rival_files_of(wildcards.model),
        screening=screening_of,
        geometry=expand(layout.geometry("{{model}}", "{table}"), table=GEOMETRY_TABLES),
        selections=layout.selections("{model}"),
        baseline=expand(layout.baseline("{{model}}", "{temperature}"), temperature=BASELINES),
        target=layout.manifest("{model}"),
    output:
        expand(layout.summary("{{model}}", "{table}"), table=SUMMARY_TABLES),
        inputs=layout.inputs("summarise_model", "{model}"),
    log:
        layout.log("summarise_model", "{model}"),
    benchmark:
        layout.benchmark("summarise_model", "{model}")
    conda:
        "../envs/report.yaml"
    resources:
        mem_mb=memory_of("summarise_model"),
        runtime=minutes_of("summarise_model"),
    params:
        code=identities.code("summarise_model"),
        dtype=lambda wildcards: study.models[wildcards.model].dtype,
        options=summary_options,
        geometry=lambda wildcards, input: Path(input.geometry[0]).parent.as_posix(),
        folder=lambda wildcards, output: Path(output[0]).parent.as_posix(),
    shell:
        "printf '%s\\n' {params.options:q} > {output.inputs}\n"
        "python scripts/summarise_model.py --model {wildcards.model} --fingerprint {params.code} --target {input.target}"
        " --geometry {params.geometry} --selections {input.selections} @{output.inputs}"
        " --dtype {params.dtype} --output {params.folder} > {log} 2>&1"


rule aggregate_study:
    input:
        summaries=expand(layout.summary("{model}", "{table}"), model=study.study.models, table=SUMMARY_TABLES),
        targets=expand(layout.manifest("{model}"), model=study.study.models),
    output:
        database=layout.database,
        answer=report(
            layout.answer, caption="../report/answer.rst", category="The answer", labels={"what": "in three lines"}
        ),
        tables=directory(layout.tables),
        inputs=layout.inputs("aggregate_study"),
    log:
        layout.log("aggregate_study"),
    benchmark:
        layout.benchmark("aggregate_study")
    conda:
        "../envs/report.yaml"
    resources:
        mem_mb=memory_of("aggregate_study"),
        runtime=minutes_of("aggregate_study"),
    params:
        spec=specs.aggregate(study).canonical(),
        code=identities.code("aggregate_study"),
        options=[
            option
            for model in study.study.models
            for option in (
                f"--summary={model}={Path(layout.summary(model, 'runs')).parent}",
                f"--target={model}={layout.manifest(model)}",
            )
        ],
        benchmarks=f"{layout.root}/benchmarks",
    shell:
        "printf '%s\\n' {params.options:q} > {output.inputs}\n"
        "python scripts/aggregate_study.py --spec {params.spec:q} --fingerprint {params.code} --threads {threads}"
        " @{output.inputs} --benchmarks {params.benchmarks} --database {output.database}"
        " --answer {output.answer} --tables {output.tables} > {log} 2>&1"


rule render_report:
    input:
        database=layout.database,
    output:
        report=report(
            layout.report, caption="../report/page.rst", category="The answer", labels={"what": "the study's page"}
        ),
        figures=report(
            directory(layout.figures),
            patterns=["{kind,[a-z]+}-{model}.svg", "{kind,[a-z]+}.svg"],
            caption="../report/figure.rst",
            category="Figures",
            subcategory=lambda wildcards: wildcards.get("model", "all models"),
            labels={"figure": "{kind}"},
        ),
        summary=layout.summary_page,
        latex=layout.comparison("tex"),
        csv=report(
            layout.comparison("csv"),
            caption="../report/comparison.rst",
            category="The answer",
            labels={"what": "main comparison"},
        ),
    log:
        layout.log("render_report"),
    conda:
        "../envs/report.yaml"
    resources:
        mem_mb=memory_of("render_report"),
        runtime=minutes_of("render_report"),
    params:
        code=identities.code("render_report"),
        plotting=[f"{name}={version(name)}" for name in ("altair", "vl-convert-python")],
    shell:
        "python scripts/render_report.py --database {input.database} --report {output.report}"
        " --figures {output.figures} --summary {output.summary} --latex {output.latex} --csv {output.csv} > {log} 2>&1"


rule render_layers:
    input:
        geometry=expand(layout.geometry("{model}", "{table}"), model=study.study.models, table=GEOMETRY_TABLES),
        selections=expand(layout.selections("{model}"), model=study.study.models),
        recommendations=expand(layout.recommendation("{model}"), model=study.study.models),
        targets=expand(layout.manifest("{model}"), model=study.study.models),
    output:
        page=report(
            layout.layers_page,
            caption="../report/layers.rst",
            category="The answer",
            labels={"what": "the layers alone"},
        ),
        inputs=layout.inputs("render_layers"),
    log:
        layout.log("render_layers"),
    conda:
        "../envs/report.yaml"
    resources:
        mem_mb=memory_of("render_layers"),
        runtime=minutes_of("render_layers"),
    params:
        spec=specs.aggregate(study).canonical(),
        code=identities.code("render_layers"),
        plotting=[f"{name}={version(name)}" for name in ("altair", "vl-convert-python")],
        options=[
            option
            for model in study.study.models
            for option in (
                f"--target={model}={layout.manifest(model)}",
                f"--geometry={model}={Path(layout.geometry(model, 'cka')).parent}",
                f"--selections={model}={layout.selections(model)}",
                f"--recommendation={model}={layout.recommendation(model)}",
            )
        ],
    shell:
        "printf '%s\\n' {params.options:q} > {output.inputs}\n"
        "python scripts/render_layers.py --spec {params.spec:q} --fingerprint {params.code} @{output.inputs}"
        " --page {output.page} > {log} 2>&1"
