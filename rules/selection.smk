checkpoint select_layers:
    input:
        activations=layout.activations("{model}"),
        entropy=layout.geometry("{model}", "entropy"),
        cka=layout.geometry("{model}", "cka"),
        gram=layout.geometry("{model}", "gram"),
    output:
        selections=layout.selections("{model}"),
        trace=layout.selection_trace("{model}"),
        heads=layout.heads("{model}"),
    log:
        layout.log("select_layers", "{model}"),
    benchmark:
        layout.benchmark("select_layers", "{model}")
    priority: PRIORITY["select_layers"]
    conda:
        "../envs/geometry.yaml"
    resources:
        mem_mb=memory_of("select_layers"),
        runtime=minutes_of("select_layers"),
    params:
        spec=spec_of("select_layers"),
        identity=identity_of("select_layers"),
        activations=identity_of("dump_activations"),
    message:
        "select_layers of {wildcards.model}: {choices_in_words}"
    shell:
        "python scripts/select_layers.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --activations {input.activations}"
        " --activations-fingerprint {params.activations}"
        " --entropy {input.entropy} --cka {input.cka} --gram {input.gram}"
        " --selections {output.selections} --trace {output.trace} --heads {output.heads} > {log} 2>&1"


rule recommend_layers:
    input:
        selections=layout.selections("{model}"),
        target=layout.manifest("{model}"),
    output:
        layout.recommendation("{model}"),
    log:
        layout.log("recommend_layers", "{model}"),
    localrule: True
    conda:
        "../envs/geometry.yaml"
    params:
        code=identities.code("recommend_layers"),
    shell:
        "python scripts/recommend_layers.py --model {wildcards.model} --target {input.target}"
        " --selections {input.selections} --output {output} > {log} 2>&1"
