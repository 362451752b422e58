rule dump_activations:
    input:
        corpus=layout.corpus("{model}", "calibration"),
        target=layout.manifest("{model}"),
    output:
        manifest=layout.activations("{model}"),
    log:
        layout.log("dump_activations", "{model}"),
    benchmark:
        layout.benchmark("dump_activations", "{model}")
    priority: PRIORITY["dump_activations"]
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("dump_activations"),
        runtime=minutes_of("dump_activations"),
        gpu=gpus_of("dump_activations"),
    params:
        spec=spec_of("dump_activations"),
        identity=identity_of("dump_activations"),
        target=folder_of("target"),
    shell:
        "python scripts/dump_activations.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --corpus {input.corpus} --manifest {output.manifest} > {log} 2>&1"
