"""The study: which layers of a language model should feed its speculative drafter."""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


report: "report/workflow.rst"


include: "rules/common.smk"
include: "rules/fanout.smk"
include: "rules/models.smk"
include: "rules/corpus.smk"
include: "rules/activations.smk"
include: "rules/geometry.smk"
include: "rules/selection.smk"
include: "rules/screening.smk"
include: "rules/drafts.smk"
include: "rules/acceptance.smk"
include: "rules/rivals.smk"
include: "rules/report.smk"
include: "rules/export.smk"


# for scripts/why.py: what the fingerprints of this run were made of
onstart:
    add_records(Path(layout.fingerprints), identities.records())


onsuccess:
    print(where_results_lie())


onerror:
    print(what_to_do_now())


rule all:
    default_target: True
    input:
        layout.report,
        screenings,
        rival_results,


rule layers:
    input:
        layout.layers_page,
        expand(layout.recommendation("{model}"), model=study.study.models),


rule acceptance:
    input:
        expand(layout.summary("{model}", "runs"), model=study.study.models),
        screenings,
        rival_results,


rule report:
    input:
        layout.report,
        screenings,
        rival_results,


rule export:
    input:
        expand(layout.preflight("{model}"), model=study.study.models),
    log:
        layout.log("export", "all"),
    localrule: True
    conda:
        "envs/export.yaml"
    shell:
        "cat {input} | tee {log}"
