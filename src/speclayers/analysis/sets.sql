-- Layer sets of study.duckdb: which selectors chose them, and which were measured.

create view selected as
select
    s.model,
    s.selector,
    s.k,
    s.seed,
    s.layers,
    array_to_string(
        list_transform(
            s.layers, lambda layer: 'l' || lpad(layer::varchar, case when list_max(s.layers) >= 100 then 3 else 2 end, '0')
        ),
        '-'
    ) as layer_set,
    s.selector || case
        when min(s.seed) over same_selector < max(s.seed) over same_selector then ' seed ' || s.seed else ''
    end || case
        when count(*) over same_choice > 1 then ' {' || array_to_string(s.layers, ', ') || '}' else ''
    end as label,
    s.trained,
    s.score,
    s.runner_up,
    s.trace,
    s.stability,
    s.half_sample_set,
    s.reason
from selections as s
window
    same_selector as (partition by s.model, s.selector, s.k),
    same_choice as (partition by s.model, s.selector, s.k, s.seed);

-- the set is named already, so that the labels here need not repeat it
create view selectors_of_set as
select model, layer_set, string_agg(distinct name, ', ' order by name) as selectors, max(score) as score
from (select model, layer_set, score, regexp_replace(label, ' \{.*\}$', '') as name from selected)
group by model, layer_set;

create view sets as
select
    r.model,
    r.layer_set,
    any_value(r.kind) as kind,
    any_value(r.layers) as layers,
    any_value(r.k) as k,
    coalesce(any_value(s.selectors), '') as selectors,
    any_value(s.score) as score
from runs as r
left join selectors_of_set as s using (model, layer_set)
group by r.model, r.layer_set;
