rule build_corpus:
    input:
        lambda wildcards: prompts_file[wildcards.split],
        target=layout.manifest("{model}"),
    output:
        corpus=layout.corpus("{model}", "{split}"),
    log:
        layout.log("build_corpus", "{model}", "{split}"),
    benchmark:
        layout.benchmark("build_corpus", "{model}", "{split}")
    priority: PRIORITY["build_corpus"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("build_corpus"),
        runtime=minutes_of("build_corpus"),
        gpu=gpus_of("build_corpus"),
    params:
        spec=spec_of("build_corpus"),
        identity=identity_of("build_corpus"),
        target=folder_of("target"),
        work=lambda wildcards: layout.work(wildcards.model, f"corpus-{wildcards.split}"),
    shell:
        "python scripts/build_corpus.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --work {params.work} --output {output.corpus} > {log} 2>&1"


rule choose_questions:
    input:
        lambda wildcards: question_file,  # a function, so that braces in the path are no wildcards
    output:
        questions=layout.questions(),
    log:
        layout.log("choose_questions"),
    localrule: True
    conda:
        "../envs/model.yaml"
    params:
        spec=identities.spec("choose_questions", ANY_MODEL),
        identity=identities.identity("choose_questions", ANY_MODEL),
        downloads=layout.downloads,
    shell:
        "python scripts/choose_questions.py --spec {params.spec:q} --model all"
        " --fingerprint {params.identity} --downloads {params.downloads} --output {output.questions} > {log} 2>&1"
