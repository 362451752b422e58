rule decode_baseline:
    input:
        questions=layout.questions(),
        greedy=greedy_baseline,
        target=layout.manifest("{model}"),
    output:
        baseline=(
            layout.baseline_shard("{model}", "{temperature}", "{shard}")
            if SHARDED
            else layout.baseline("{model}", "{temperature}")
        ),
    log:
        layout.log("decode_baseline", "{model}", "T{temperature}", *SHARD),
    benchmark:
        layout.benchmark("decode_baseline", "{model}", "T{temperature}", *SHARD)
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("decode_baseline"),
        runtime=minutes_of("decode_baseline"),
        gpu=gpus_of("decode_baseline"),
    params:
        spec=spec_of("decode_baseline"),
        identity=identity_of("decode_baseline"),
        target=folder_of("target"),
        greedy=lambda wildcards, input: f"--greedy {input.greedy}" if input.greedy else "",
        shard=shard_option,
        work=shard_work("baseline-T{temperature}"),
    shell:
        "python scripts/decode_baseline.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --questions {input.questions} --temperature {wildcards.temperature} {params.greedy}"
        " {params.shard} --work {params.work} --output {output.baseline} > {log} 2>&1"


rule measure_acceptance:
    input:
        head=layout.head("{model}", "{head}", "model.safetensors"),
        config=layout.head("{model}", "{head}", "config.json"),
        baseline=layout.baseline("{model}", "0"),
        target=layout.manifest("{model}"),
    output:
        **{
            table: (
                layout.acceptance_shard("{model}", "{head}", "{temperature}", "{nodes}", table, "{shard}")
                if SHARDED
                else layout.acceptance("{model}", "{head}", "{temperature}", "{nodes}", table)
            )
            for table in ("cycles", "turns")
        },
    log:
        layout.log("measure_acceptance", "{model}", "{head}", "T{temperature}-n{nodes}", *SHARD),
    benchmark:
        layout.benchmark("measure_acceptance", "{model}", "{head}", "T{temperature}-n{nodes}", *SHARD)
    conda:
        "../envs/model.yaml"
    resources:
        mem_mb=memory_of("measure_acceptance"),
        runtime=minutes_of("measure_acceptance"),
        gpu=gpus_of("measure_acceptance"),
    params:
        spec=spec_of("measure_acceptance"),
        identity=identity_of("measure_acceptance"),
        target=folder_of("target"),
        shard=shard_option,
        work=shard_work("{head}-T{temperature}-n{nodes}"),
    shell:
        "python scripts/measure_acceptance.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --head {input.head} --baseline {input.baseline} --temperature {wildcards.temperature}"
        " --nodes {wildcards.nodes} {params.shard} --work {params.work} --cycles {output.cycles}"
        " --turns {output.turns} > {log} 2>&1"


if SHARDED:

    rule merge_baseline:
        input:
            expand(
                layout.baseline_shard("{{model}}", "{{temperature}}", "{shard}"),
                shard=range(study.acceptance.shards),
            ),
        output:
            baseline=layout.baseline("{model}", "{temperature}"),
        log:
            layout.log("merge_baseline", "{model}", "T{temperature}"),
        localrule: True
        conda:
            "../envs/report.yaml"
        params:
            code=identities.code("merge_shards"),
            identity=identity_of("decode_baseline"),
        shell:
            "python scripts/merge_shards.py --model {wildcards.model} --fingerprint {params.identity}"
            " --baseline {output.baseline} {input} > {log} 2>&1"

    rule merge_acceptance:
        input:
            **{
                table: expand(
                    layout.acceptance_shard("{{model}}", "{{head}}", "{{temperature}}", "{{nodes}}", table, "{shard}"),
                    shard=range(study.acceptance.shards),
                )
                for table in ("cycles", "turns")
            },
        output:
            cycles=layout.acceptance("{model}", "{head}", "{temperature}", "{nodes}", "cycles"),
            turns=layout.acceptance("{model}", "{head}", "{temperature}", "{nodes}", "turns"),
        log:
            layout.log("merge_acceptance", "{model}", "{head}", "T{temperature}-n{nodes}"),
        localrule: True
        conda:
            "../envs/report.yaml"
        params:
            code=identities.code("merge_shards"),
            identity=identity_of("measure_acceptance"),
        shell:
            "python scripts/merge_shards.py --model {wildcards.model} --fingerprint {params.identity}"
            " --cycles {output.cycles} {input.cycles} --turns {output.turns} {input.turns} > {log} 2>&1"


rule measure_speed:
    input:
        head=layout.head("{model}", "{head}", "model.safetensors"),
        config=layout.head("{model}", "{head}", "config.json"),
        baseline=layout.baseline("{model}", "0"),
        target=layout.manifest("{model}"),
    output:
        speed=layout.speed("{model}", "{head}", "{temperature}", "{nodes}"),
    log:
        layout.log("measure_speed", "{model}", "{head}", "T{temperature}-n{nodes}"),
    benchmark:
        layout.benchmark("measure_speed", "{model}", "{head}", "T{temperature}-n{nodes}")
    conda:
        "../envs/model.yaml"
    threads: whole_machine
    resources:
        mem_mb=memory_of("measure_speed"),
        runtime=minutes_of("measure_speed"),
        gpu=gpus_of("measure_speed"),
    params:
        spec=spec_of("measure_speed"),
        identity=identity_of("measure_speed"),
        target=folder_of("target"),
    shell:
        "python scripts/measure_speed.py --spec {params.spec:q} --model {wildcards.model}"
        " --fingerprint {params.identity} --threads {threads} --target {params.target}"
        " --head {input.head} --baseline {input.baseline} --temperature {wildcards.temperature}"
        " --nodes {wildcards.nodes} --output {output.speed} > {log} 2>&1"
