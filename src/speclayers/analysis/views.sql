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
        sum(c.layer_forwards) / nullif(sum(c.emitted), 0) as layer_forwards_per_token,
        sum(c.search_layer_forwards) / nullif(sum(c.emitted), 0) as search_layer_forwards_per_token,
        sum(c.search_rows) / nullif(sum(c.emitted), 0) as search_rows_per_token,
        avg(c.search_score) as search_score
    from cycles as c
    inner join runs as r using (model, drafter, temperature, nodes)
    group by all
)

select
    e.*,
    s.layers is not null and e.nodes in (select nodes from runs where chain) as chain,
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

create view skip_profile as
with skipped as (
    select r.model, r.layer_set, c.temperature, c.nodes, c.skipped_attention, c.skipped_mlp
    from cycles as c
    inner join runs as r using (model, drafter, temperature, nodes)
    where c.skipped_mlp is not null
),

shares as (
    select
        s.model,
        s.layer_set,
        s.temperature,
        s.nodes,
        l.layer,
        avg(list_contains(s.skipped_attention, l.layer)::int) as attention_skipped,
        avg(list_contains(s.skipped_mlp, l.layer)::int) as mlp_skipped
    from skipped as s
    inner join layer_profile as l on s.model = l.model and l.layer > 0
    group by all
)

select s.*, p.cka_to_next as cka_through, l.block
from shares as s
inner join layer_profile as l using (model, layer)
left join layer_profile as p on s.model = p.model and s.layer = p.layer + 1
order by s.model, s.layer_set, s.temperature, s.nodes, s.layer;

create view skip_overlap as
with ranked as (
    select
        *,
        (attention_skipped + mlp_skipped) / 2 as skipped,
        sum((attention_skipped + mlp_skipped) / 2) over setting as blocks,
        count(*) over setting as layers,
        row_number() over (
            partition by model, layer_set, temperature, nodes order by cka_through desc nulls last, layer
        ) as place
    from skip_profile
    window setting as (partition by model, layer_set, temperature, nodes)
)

select
    model,
    layer_set,
    temperature,
    nodes,
    any_value(blocks) as skipped_blocks,
    sum(skipped) filter (place <= round(blocks)) / nullif(sum(skipped), 0) as redundant_share,
    round(any_value(blocks)) / any_value(layers) as share_by_chance
from ranked
group by model, layer_set, temperature, nodes
order by all;

create view skip_changes as
with searches as (
    select
        r.model,
        r.layer_set,
        c.temperature,
        c.nodes,
        len(c.skipped_attention) + len(c.skipped_mlp) as parts,
        lag(c.cycle) over turn is not null as has_before,
        len(list_intersect(c.skipped_attention, lag(c.skipped_attention) over turn)) as same_attention,
        len(list_intersect(c.skipped_mlp, lag(c.skipped_mlp) over turn)) as same_mlp
    from cycles as c
    inner join runs as r using (model, drafter, temperature, nodes)
    where c.search_rows > 0 and c.skipped_mlp is not null
    window
        turn as (
            partition by c.model, c.drafter, c.temperature, c.nodes, c.question_id, c.turn order by c.cycle
        )
)

select
    model,
    layer_set,
    temperature,
    nodes,
    count(*) as searches,
    avg((same_attention + same_mlp) / nullif(parts, 0)) filter (has_before) as kept_share
from searches
group by model, layer_set, temperature, nodes
order by all;

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
with drafting as (
    select
        model,
        drafter,
        temperature,
        nodes,
        layers is null as is_rival,
        printf('%s/%s/T%g-n%d%s', model, drafter, temperature, nodes, if(chain, 'c', '')) as job
    from runs
)

-- shards of one run are jobs of their own, but no table tells which questions each of them answered
select if(d.is_rival, 'measure_rival', 'measure_acceptance') as rule, d.job, sum(t.new_tokens)::bigint as tokens
from turns as t
inner join drafting as d using (model, drafter, temperature, nodes)
group by all
union all
select
    if(d.is_rival, 'time_rival', 'measure_speed'),
    d.job,
    sum(s.new_tokens + s.baseline_new_tokens)
from speed as s
inner join drafting as d using (model, drafter, temperature, nodes)
group by all
union all
select 'train_draft', printf('%s/%s', model, drafter), sum(slots)
from training
where split = 'train' and ttt_step = 0
group by all;

-- jobs named by a drafter alone made it: they train it, or search for what it skips; an import only copies
create view preparation as
select
    r.model,
    r.layer_set,
    j.rule,
    starts_with(j.rule, 'train_') or starts_with(j.rule, 'continue_') as is_training,
    count(*) as jobs,
    avg(j.seconds) as seconds,
    max(j.max_rss_mb) as max_rss_mb
from (select distinct model, drafter, layer_set from runs) as r
inner join jobs as j on j.job = r.model || '/' || r.drafter and j.rule <> 'import_draft'
group by r.model, r.layer_set, j.rule
order by all;

create view extra_memory as
with measured as (
    select
        r.model,
        r.layer_set,
        r.temperature,
        r.nodes,
        max(j.max_rss_mb) as run_mb,
        any_value(printf('%s/T%g', r.model, r.temperature)) as plain
    from runs as r
    inner join jobs as j
        on
            j.rule in ('measure_acceptance', 'measure_rival')
            and starts_with(
                j.job || '/',
                printf('%s/%s/T%g-n%d%s/', r.model, r.drafter, r.temperature, r.nodes, if(r.chain, 'c', ''))
            )
    group by r.model, r.layer_set, r.temperature, r.nodes
)

select m.model, m.layer_set, m.temperature, m.nodes, m.run_mb - max(j.max_rss_mb) as extra_mb
from measured as m
inner join jobs as j on j.rule = 'decode_baseline' and starts_with(j.job || '/', m.plain || '/')
group by m.model, m.layer_set, m.temperature, m.nodes, m.run_mb
order by all;

create view drafters as
with preparing as (
    select
        model,
        layer_set,
        coalesce(sum(seconds) filter (is_training), 0) as training_s,
        coalesce(sum(seconds) filter (not is_training), 0) as search_s
    from preparation
    group by model, layer_set
),

apart as (
    select * exclude (metric)
    from rival_differences
    where metric = 'tau_question'
),

-- an answer that is not plain decoding's, elsewhere than at a tie: its drafter belongs in no table of lossless ones
inexact as (select distinct model, layer_set from runs where exactness = 'different')

select
    a.model,
    a.layer_set,
    a.kind,
    a.layers,
    a.temperature,
    a.nodes,
    a.chain,
    a.tau_question,
    a.tau_question_low,
    a.tau_question_high,
    a.tau_pooled,
    a.tau_pooled_low,
    a.tau_pooled_high,
    a.accepted_per_cycle,
    d.reference,
    d.reference_nodes,
    d.difference,
    d.difference_low,
    d.difference_high,
    d.p_holm,
    d.verdict,
    s.speed_up,
    s.speed_up_low,
    s.speed_up_high,
    a.draft_forwards_per_token,
    a.layer_forwards_per_token,
    a.search_layer_forwards_per_token,
    a.search_rows_per_token,
    a.search_score,
    m.extra_mb,
    -- without a head and without such a job there was nothing to train; a head from elsewhere was trained before
    case
        when a.kind = 'pretrained' or a.model not in (select model from jobs where model is not null) then null
        when a.layers is null then coalesce(p.training_s, 0)
        else p.training_s
    end as training_s,
    case when a.model in (select model from jobs where model is not null) then coalesce(p.search_s, 0) end as search_s,
    i.model is null as lossless
from acceptance_summary as a
left join preparing as p using (model, layer_set)
left join apart as d using (model, layer_set, temperature, nodes)
left join speed_estimates as s using (model, layer_set, temperature, nodes)
left join extra_memory as m using (model, layer_set, temperature, nodes)
left join inexact as i using (model, layer_set)
where a.kind <> 'moved'
order by a.model, a.temperature, a.tau_question desc;

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
