rule accumulate_gram:
    input:
        activations=layout.activations("{model}"),
    output:
        shard=layout.gram_shard("{model}", "{shard}"),
    log:
        layout.log("accumulate_gram", "{model}", "{shard}"),
    benchmark:
        layout.benchmark("accumulate_gram", "{model}", "{shard}")
    priority: PRIORITY["accumulate_gram"]
    conda:
        gram_environment
    resources:
        mem_mb=memory_of("accumulate_gram"),
        runtime=minutes_of("accumulate_gram"),
        gpu=gpus_of("accumulate_gram"),
    params:
        spec=spec_of("accumulate_gram"),
        identity=identity_of("accumulate_gram"),
        activations=identity_of("dump_activations"),
    shell:
        "python scripts/accumulate_gram.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --activations {input.activations}"
        " --activations-fingerprint {params.activations} --shard {wildcards.shard}"
        " --output {output.shard} > {log} 2>&1"


rule measure_geometry:
    input:
        activations=layout.activations("{model}"),
        shards=gram_shards,
    output:
        entropy=layout.geometry("{model}", "entropy"),
        cka=layout.geometry("{model}", "cka"),
        gram=layout.geometry("{model}", "gram"),
        turning=layout.geometry("{model}", "turning"),
        filter_effect=layout.geometry("{model}", "filter_effect"),
        convergence=layout.geometry("{model}", "convergence"),
        lens=layout.geometry("{model}", "lens"),
    log:
        layout.log("measure_geometry", "{model}"),
    benchmark:
        layout.benchmark("measure_geometry", "{model}")
    priority: PRIORITY["measure_geometry"]
    conda:
        gram_environment
    resources:
        mem_mb=memory_of("measure_geometry"),
        runtime=minutes_of("measure_geometry"),
        gpu=gpus_of("measure_geometry"),
    params:
        spec=spec_of("measure_geometry"),
        identity=identity_of("measure_geometry"),
        activations=identity_of("dump_activations"),
        shards=shards_option,
    shell:
        "python scripts/measure_geometry.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --activations {input.activations}"
        " --activations-fingerprint {params.activations} {params.shards}"
        " --entropy {output.entropy} --cka {output.cka} --gram {output.gram}"
        " --turning {output.turning} --filter-effect {output.filter_effect}"
        " --convergence {output.convergence} --lens {output.lens} > {log} 2>&1"


rule sweep_filter:
    input:
        activations=layout.activations("{model}"),
    output:
        sweep=layout.geometry("{model}", "filter_sweep"),
        sets=layout.geometry("{model}", "filter_sets"),
    log:
        layout.log("sweep_filter", "{model}"),
    benchmark:
        layout.benchmark("sweep_filter", "{model}")
    conda:
        "../envs/geometry.yaml"
    resources:
        mem_mb=memory_of("sweep_filter"),
        runtime=minutes_of("sweep_filter"),
    params:
        spec=spec_of("sweep_filter"),
        identity=identity_of("sweep_filter"),
        activations=identity_of("dump_activations"),
    shell:
        "python scripts/sweep_filter.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --activations {input.activations}"
        " --activations-fingerprint {params.activations}"
        " --filter-sweep {output.sweep} --filter-sets {output.sets} > {log} 2>&1"
