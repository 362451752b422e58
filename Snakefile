"""The study: which layers of a language model should feed its speculative drafter."""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


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
include: "rules/report.smk"


# for scripts/why.py: what the fingerprints of this run were made of
onstart:
    add_records(Path(layout.fingerprints), identities.records())


rule all:
    default_target: True
    input:
        layout.report,
        screenings,


rule layers:
    input:
        layout.layers_page,
        expand(layout.recommendation("{model}"), model=study.study.models),


rule acceptance:
    input:
        expand(layout.summary("{model}", "runs"), model=study.study.models),
        screenings,


rule report:
    input:
        layout.report,
        screenings,
