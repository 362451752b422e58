# One job a model: who goes on to the next rung is known only when a rung has ended, so a job a candidate and rung would
# need a checkpoint a rung, and would load the target each time. The job keeps every result, and continues after a kill.
checkpoint screen_layers:
    input:
        selections=layout.selections("{model}"),
        corpus=layout.corpus("{model}", "training"),
        target=layout.manifest("{model}"),
    output:
        screening=layout.screening("{model}"),
        winner=layout.screened("{model}"),
    log:
        layout.log("screen_layers", "{model}"),
    benchmark:
        layout.benchmark("screen_layers", "{model}")
    priority: PRIORITY["screen_layers"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("screen_layers"),
        runtime=minutes_of("screen_layers"),
        gpu=gpus_of("screen_layers"),
    params:
        spec=spec_of("screen_layers"),
        identity=identity_of("screen_layers"),
        target=folder_of("target"),
        work=lambda wildcards: layout.work(wildcards.model, "screening"),
    shell:
        "python scripts/screen_layers.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --corpus {input.corpus} --selections {input.selections} --work {params.work}"
        " --screening {output.screening} --winner {output.winner} > {log} 2>&1"
