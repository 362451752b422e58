"""What each stage needs of the config: its own slice and nothing else, so that only its changes rerun it.

A rule passes `canonical()` of its spec to its script; the script reads it back with `read_spec`.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from speclayers.config import (
    DraftConfig,
    GeometryConfig,
    PretrainedHead,
    Questions,
    RivalConfig,
    Runtime,
    SamplingLimits,
    ScreenConfig,
    Section,
    SelectionConfig,
    Source,
    SplitConfig,
    StatisticsConfig,
    Study,
    TrainedSource,
    nearest,
)
from speclayers.errors import UserError


class FetchSpec(Section):
    """Fetching a model from the hub, a folder or a package."""

    source: Source
    trust_remote_code: bool


class TinyModelSpec(Section):
    """Training a small model on its teacher's text."""

    source: TrainedSource


class CorpusSpec(Section):
    """Answering one split's prompts."""

    runtime: Runtime
    split: SplitConfig
    batch_size: int


class DumpSpec(Section):
    """Dumping the states of all layers over the calibration responses."""

    runtime: Runtime
    max_tokens: int
    lens_tokens: int


class SelectionSpec(Section):
    """Choosing layers from measured geometry."""

    geometry: GeometryConfig
    selection: SelectionConfig


class FeaturesSpec(Section):
    """Running the target over the training responses for the layers that heads read."""

    runtime: Runtime


class TrainSpec(Section):
    """Training one head, or training one on."""

    runtime: Runtime
    draft: DraftConfig


class ScreenSpec(Section):
    """Screening candidate layer sets by short trainings."""

    runtime: Runtime
    draft: DraftConfig
    screen: ScreenConfig


class QuestionsSpec(Section):
    """Choosing the benchmark questions."""

    questions: Questions
    per_category: int | None
    per_subcategory: int | None = None
    seed: int


class DecodeSpec(Section):
    """Plain or speculative decoding of the benchmark questions."""

    runtime: Runtime
    max_new_tokens: int
    sampling: SamplingLimits = SamplingLimits()
    depth: int
    top_k: int
    seed: int


class BaselineSpec(Section):
    """Plain decoding of the benchmark questions."""

    decode: DecodeSpec
    check_generate: bool


class SpeedSpec(Section):
    """Timed decoding of some of the questions."""

    decode: DecodeSpec
    per_category: int


class ExportSpec(Section):
    """Writing a head's folder for an engine."""

    dtype: str
    speculative_tokens: int


class RecommendHeadSpec(Section):
    """Choosing the head to export, and saying which engines serve it."""

    engines: list[str]


class RivalSpec(Section):
    """Decoding with a drafter that needs no head."""

    decode: DecodeSpec
    rival: RivalConfig


class SkipSearchSpec(Section):
    """Searching layers for a drafter to skip."""

    runtime: Runtime
    rival: RivalConfig


class TimedRivalSpec(Section):
    """Timed decoding with such a drafter."""

    timed: SpeedSpec
    rival: RivalConfig


class AggregateSpec(Section):
    """Uniting all models' results."""

    study: str
    statistics: StatisticsConfig


def fetch(study: Study, model: str) -> FetchSpec:
    """Return the slice of fetch_model."""
    config = study.models[model]
    return FetchSpec(source=config.source, trust_remote_code=config.trust_remote_code)


def tiny_model(study: Study, model: str) -> TinyModelSpec:
    """Return the slice of make_tiny_model."""
    return TinyModelSpec(source=trained_source(study, model))


def teacher(study: Study, model: str) -> CorpusSpec:
    """Return the slice of build_teacher: the teacher answering bundled prompts."""
    source = trained_source(study, model)
    split = SplitConfig(
        count=source.prompts,
        seed=source.prompt_seed,
        max_new_tokens=source.max_new_tokens,
        temperature=source.temperature,
    )
    return CorpusSpec(runtime=study.models[source.teacher].runtime(), split=split, batch_size=source.batch_size)


def trained_source(study: Study, model: str) -> TrainedSource:
    """Return the source of a model that the workflow trains.

    Raises:
        UserError: The model comes from elsewhere.
    """
    source = study.models[model].source
    if not isinstance(source, TrainedSource):
        raise UserError(f"models.{model}.source: is '{source.kind}', not 'trained'")
    return source


def corpus(study: Study, model: str, split: str) -> CorpusSpec:
    """Return the slice of build_corpus."""
    return CorpusSpec(
        runtime=study.models[model].runtime(),
        split=getattr(study.corpus, split),
        batch_size=study.corpus.batch_size,
    )


def dump(study: Study, model: str) -> DumpSpec:
    """Return the slice of dump_activations."""
    geometry = study.geometry
    runtime = study.models[model].runtime()
    return DumpSpec(runtime=runtime, max_tokens=geometry.max_tokens, lens_tokens=geometry.lens_tokens)


def gram(study: Study, model: str) -> GeometryConfig:
    """Return the slice of accumulate_gram: which rows, how prepared, and how they are multiplied and shared out."""
    unused = ("alpha", "information_flow", "search_rows", "effect_tokens", "turning_score")
    return _without(study.geometry, *_unused_threshold(study), *_OF_OTHERS, *unused)


def geometry(study: Study, model: str) -> GeometryConfig:
    """Return the slice of measure_geometry; some of the section's values serve other stages."""
    shared_out = ("shards", "device") if study.geometry.shards > 1 else ()
    return _without(study.geometry, *_unused_threshold(study), *_OF_OTHERS, *shared_out, "search_rows")


def sweep(study: Study, model: str) -> GeometryConfig:
    """Return the slice of sweep_filter, which tries filters of its own."""
    unused = ("keep_share", "filter_scope", "alpha", "blocks", "search_rows", "turning_score", *_OF_OTHERS, *_OF_GRAM)
    return _without(study.geometry, *(key for key in unused if key != "sweep_shares"))


_OF_OTHERS = ("max_tokens", "lens_tokens", "sweep_shares")
"""Values of the section that serve the dump and the sweep."""

_OF_GRAM = ("information_flow", "device", "shards")
"""Values that serve the geometry tables alone."""


def _unused_threshold(study: Study) -> tuple[str, ...]:
    return () if study.geometry.filter_scope == "absolute" else ("entropy_threshold",)


def _without(config: GeometryConfig, *keys: str) -> GeometryConfig:
    """Return the section with some values set back to their defaults, so that a change in them does not count."""
    defaults = GeometryConfig()
    return config.model_copy(update={key: getattr(defaults, key) for key in keys})


def selection(study: Study, model: str) -> SelectionSpec:
    """Return the slice of select_layers: the selectors that choose for this model."""
    chosen = [s for s in study.selection.selectors if s.models is None or model in s.models]
    selectors = [s.model_copy(update={"models": None}) for s in chosen]
    measured = _without(study.geometry, *_unused_threshold(study), *_OF_OTHERS, *_OF_GRAM)
    return SelectionSpec(geometry=measured, selection=study.selection.model_copy(update={"selectors": selectors}))


def features(study: Study, model: str) -> FeaturesSpec:
    """Return the slice of extract_features."""
    return FeaturesSpec(runtime=study.models[model].runtime())


def train(study: Study, model: str) -> TrainSpec:
    """Return the slice of train_draft.

    The seeds are left out, since a head's name carries its own, and so are the steps where tokens count.
    """
    unused = {"seeds": [0]} | ({} if study.draft.tokens is None else {"steps": DraftConfig().steps})
    return TrainSpec(runtime=study.models[model].runtime(), draft=study.draft.model_copy(update=unused))


def continued(study: Study, model: str) -> TrainSpec:
    """Return the slice of continue_draft: the heads' training, without what the head brings along.

    The target's states are made anew meanwhile: which layers the head reads is known only once it is there.
    """
    whole = DraftConfig()
    own = ("vocabulary", "kv_heads", "norm_before_fc", "fc_norm", "norm_output", "initialise")
    unused = {key: getattr(whole, key) for key in own} | {"features": "online"}
    found = train(study, model)
    return found.model_copy(update={"draft": found.draft.model_copy(update=unused)})


def screen(study: Study, model: str) -> ScreenSpec:
    """Return the slice of screen_layers: the heads' training, with a seed, budgets and step sizes of its own.

    Raises:
        UserError: The study screens nothing.
    """
    if study.screen is None:
        raise UserError("screen: is not in the config, so that nothing is screened")
    whole = DraftConfig()
    unused = ("seeds", "steps", "tokens", "evaluate_every", "features", "processes")
    draft = study.draft.model_copy(update={key: getattr(whole, key) for key in unused})
    own = {key: getattr(study.screen, key) for key in ("sequences_per_step", "warmup_steps")}
    draft = draft.model_copy(update={key: value for key, value in own.items() if value is not None})
    return ScreenSpec(runtime=study.models[model].runtime(), draft=draft, screen=study.screen)


def questions(study: Study) -> QuestionsSpec:
    """Return the slice of choose_questions."""
    acceptance = study.acceptance
    return QuestionsSpec(
        questions=acceptance.questions,
        per_category=acceptance.per_category,
        per_subcategory=acceptance.per_subcategory,
        seed=acceptance.seed,
    )


def baseline(study: Study, model: str) -> BaselineSpec:
    """Return the slice of decode_baseline; a tree's width does not matter there, the longest path decides what fits."""
    longest = max([study.acceptance.depth, *study.acceptance.chains])
    narrow = decode(study, model).model_copy(update={"top_k": 1, "depth": longest})
    return BaselineSpec(decode=narrow, check_generate=study.acceptance.check_generate)


def decode(study: Study, model: str) -> DecodeSpec:
    """Return the slice of measure_acceptance; temperature and nodes are wildcards."""
    acceptance = study.acceptance
    return DecodeSpec(
        runtime=study.models[model].runtime(),
        max_new_tokens=acceptance.max_new_tokens,
        sampling=acceptance.sampling,
        depth=acceptance.depth,
        top_k=acceptance.top_k,
        seed=acceptance.seed,
    )


def speed(study: Study, model: str) -> SpeedSpec:
    """Return the slice of measure_speed."""
    timed = decode(study, model).model_copy(update={"max_new_tokens": study.speed.max_new_tokens})
    return SpeedSpec(decode=timed, per_category=study.speed.per_category)


def pretrained(study: Study, name: str) -> PretrainedHead:
    """Return the slice of import_draft: the head's entry, without how it is trained on.

    Raises:
        UserError: There is none of this name.
    """
    if name not in study.pretrained:
        raise UserError(f"pretrained: there is no '{name}'{nearest(name, study.pretrained)}")
    return study.pretrained[name].model_copy(update={"percents": [0]})


def export(study: Study, model: str) -> ExportSpec:
    """Return the slice of export_draft; the engine is a wildcard."""
    dtype = study.models[model].dtype if study.export.dtype == "target" else study.export.dtype
    return ExportSpec(dtype=dtype, speculative_tokens=study.export.speculative_tokens)


def recommend_head(study: Study, model: str) -> RecommendHeadSpec:
    """Return the slice of recommend_head."""
    return RecommendHeadSpec(engines=list(study.export.engines))


def rival(study: Study, model: str, label: str) -> RivalSpec:
    """Return the slice of measure_rival; it drafts as deep as its own entry says, whatever the heads' trees are."""
    return RivalSpec(decode=_without_tree(decode(study, model)), rival=_entry(study, label))


def timed_rival(study: Study, model: str, label: str) -> TimedRivalSpec:
    """Return the slice of time_rival."""
    timed = speed(study, model)
    timed = timed.model_copy(update={"decode": _without_tree(timed.decode)})
    return TimedRivalSpec(timed=timed, rival=_entry(study, label))


def search_skips(study: Study, model: str, label: str) -> SkipSearchSpec:
    """Return the slice of search_skips."""
    return SkipSearchSpec(runtime=study.models[model].runtime(), rival=_entry(study, label))


def _without_tree(spec: DecodeSpec) -> DecodeSpec:
    return spec.model_copy(update={"depth": 1, "top_k": 1})


def train_medusa(study: Study, model: str, label: str) -> TrainSpec:
    """Return the slice of train_medusa."""
    shared = train(study, model)
    return shared.model_copy(update={"draft": study.rival(label).training_settings(shared.draft)})


def _entry(study: Study, label: str) -> RivalConfig:
    """Return a rival's entry, without its training and what its runs' names or the models' choice tell already."""
    return study.rival(label).model_copy(update={"seeds": None, "models": None, "variant": None, "training": None})


def aggregate(study: Study) -> AggregateSpec:
    """Return the slice of aggregate_study and render_report."""
    return AggregateSpec(study=study.study.name, statistics=study.statistics)


Spec = TypeVar("Spec", bound=Section)


def read_spec(kind: type[Spec], text: str) -> Spec:
    """Read the JSON that a rule passes to its script.

    Raises:
        UserError: The JSON does not fit this stage.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"--spec: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
