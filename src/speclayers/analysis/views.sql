-- Views of study.duckdb, over the summaries' tables and the estimates.

create view acceptance_summary as
with totals as (
    select
        r.model,
        r.layer_set,
        r.temperature,
        r.nodes,
        avg(c.drafted) filter (not c.cut_by_budget) as drafted_per_cycle,
        avg(c.accepted) filter (not c.cut_by_budget) as accepted_per_cycle,
        sum(c.draft_forwards) / nullif(sum(c.emitted), 0) as draft_forwards_per_token,
        sum(c.layer_forwards) / nullif(sum(c.emitted), 0) as layer_forwards_per_token
    from cycles as c
    inner join runs as r using (model, drafter, temperature, nodes)
    group by all
)

select
    e.*,
    e.nodes in (select nodes from runs where chain) as chain,
    s.kind, s.layers, s.k, s.selectors, s.score,
    t.* exclude (model, layer_set, temperature, nodes)
from tau_estimates as e
inner join sets as s using (model, layer_set)
left join totals as t using (model, layer_set, temperature, nodes)
order by e.model, e.temperature, e.nodes, e.tau_question desc;

create view comparisons as
select d.*, d.nodes in (select nodes from runs where chain) as chain, s.kind, s.layers, s.k, s.selectors, s.score
from differences as d
inner join sets as s using (model, layer_set)
order by d.model, d.temperature, d.nodes, d.metric desc, d.difference desc;

create view layer_profile as
with entropy as (
    select
        model,
        layer,
        max(entropy) filter (subset = 'all' and sample_id is null) as entropy_all,
        max(entropy) filter (subset = 'filtered' and sample_id is null) as entropy_filtered,
        max(entropy) filter (subset = 'random' and sample_id is null) as entropy_random,
        avg(entropy) filter (subset = 'filtered' and sample_id is not null) as entropy_per_prompt,
        stddev_samp(entropy) filter (subset = 'filtered' and sample_id is not null) as spread_over_prompts,
        max(effective_rank) filter (subset = 'filtered' and sample_id is null) as effective_rank
    from geometry_entropy
    where alpha = 1 and not sinks_kept
    group by model, layer
),

neighbours as (
    select model, layer_a as layer, value as cka_to_next
    from geometry_cka
    where estimator = 'debiased' and subset = 'filtered' and layer_b = layer_a + 1
)

select e.*, l.lens_entropy, n.cka_to_next, t.score as turning_score, t.is_turning_point, t.block
from entropy as e
left join geometry_lens as l using (model, layer)
left join neighbours as n using (model, layer)
left join geometry_turning as t using (model, layer)
order by e.model, e.layer;

create view selector_agreement as
select
    a.model,
    a.k,
    a.label as selector_a,
    b.label as selector_b,
    len(list_intersect(a.layers, b.layers)) as shared_layers,
    len(list_intersect(a.layers, b.layers)) / len(list_distinct(list_concat(a.layers, b.layers))) as jaccard
from selected as a
inner join selected as b on a.model = b.model and a.k = b.k and a.label < b.label
order by a.model, a.k, selector_a, selector_b;

-- a job's place among the measurements is what its rule's wildcards make of it
create view job_tokens as
select
    'measure_acceptance' as rule,
    printf('%s/%s/T%g-n%d', model, drafter, temperature, nodes) as job,
    sum(new_tokens)::bigint as tokens
from turns
group by all
union all
select 'measure_speed', printf('%s/%s/T%g-n%d', model, drafter, temperature, nodes), sum(new_tokens + baseline_new_tokens)
from speed
group by all
union all
select 'train_draft', printf('%s/%s', model, drafter), sum(slots)
from training
where split = 'train' and ttt_step = 0
group by all;

create view costs as
select
    j.rule,
    j.model,
    count(*) as jobs,
    sum(j.seconds) as seconds,
    sum(j.cpu_seconds) as cpu_seconds,
    max(j.max_rss_mb) as max_rss_mb,
    sum(j.seconds * j.gpus) as gpu_seconds,
    string_agg(distinct j.gpu_type, '; ' order by j.gpu_type) as gpu_type,
    sum(t.tokens)::bigint as tokens,
    sum(t.tokens) / nullif(sum(j.seconds) filter (t.tokens is not null), 0) as tokens_per_s,
    string_agg(j.slurm_job, ' ' order by j.job) as slurm_jobs
from jobs as j
left join job_tokens as t using (rule, job)
group by j.rule, j.model
order by seconds desc, j.rule, j.model;

create view provenance as
select model, part, key, value from facts
union all
select distinct model, 'acceptance', drafter, fingerprint from runs
union all
select distinct model, 'head', drafter, fingerprint from heads
order by all;
