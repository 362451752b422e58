"""The whole config of one study, and what must hold between its sections."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from speclayers.config.acceptance import AcceptanceConfig, SpeedConfig, StatisticsConfig
from speclayers.config.corpus import CorpusConfig
from speclayers.config.drafts import DraftConfig, ScreenConfig, TransferConfig
from speclayers.config.export import ExportConfig, PretrainedHead
from speclayers.config.geometry import GeometryConfig, SelectionConfig
from speclayers.config.models import ModelConfig, TrainedSource
from speclayers.config.rivals import RivalConfig
from speclayers.config.section import Name, Section, nearest
from speclayers.names import PretrainedName, is_head

SHARED_FOLDERS = ("models", "downloads")
"""Folders under results/ that belong to no study."""

STUDY_ENTRIES = (
    *("tables", "figures", "benchmarks", "inputs"),
    *("questions.jsonl", "fingerprints.json", "study.duckdb", "report.html", "layers.html", "answer.txt"),
    *("summary.md", "comparison.tex", "comparison.csv"),
)
"""Folders and files of a study that belong to no model."""


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
    rivals: list[RivalConfig] = Field(
        default_factory=list, description="Drafters that need no head, to be measured beside the heads."
    )
    acceptance: AcceptanceConfig = Field(default_factory=AcceptanceConfig, description="Acceptance runs.")
    speed: SpeedConfig = Field(default_factory=SpeedConfig, description="Timed runs.")
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig, description="Statistics of the report.")
    pretrained: dict[Name, PretrainedHead] = Field(
        default_factory=dict, description="Heads trained elsewhere, to be measured beside those of the study."
    )
    export: ExportConfig = Field(default_factory=ExportConfig, description="Folders for serving engines.")

    def rival(self, label: str) -> RivalConfig:
        """Return a rival's entry by the name of its runs, less their seeds."""
        (found,) = (rival for rival in self.rivals if rival.runs()[0].label == label)
        return found

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
        reference, selectors = self.statistics.reference, self.selection.selectors
        if reference not in {selector.name for selector in selectors}:
            raise ValueError(f"statistics.reference: '{reference}' is not among selection.selectors")
        if any(s.train for s in selectors) and not any(s.train for s in selectors if s.name == reference):
            raise ValueError(
                f"statistics.reference: '{reference}' is not trained, so nothing could be compared with it"
            )
        return self

    @model_validator(mode="after")
    def _pretrained_heads_have_models(self) -> Study:
        for name, head in self.pretrained.items():
            if head.model not in self.models:
                raise ValueError(
                    f"pretrained.{name}.model: '{head.model}' is not registered{nearest(head.model, self.models)}"
                )
            own = str(PretrainedName(name))
            if is_head(own) or PretrainedName.parse(own).percent:
                raise ValueError(f"pretrained.{name}: ends as names of trained heads do; choose another name")
        return self

    @model_validator(mode="after")
    def _rivals_fit(self) -> Study:
        labels = [rival.runs()[0].label for rival in self.rivals]
        for place, (rival, label) in enumerate(zip(self.rivals, labels, strict=True)):
            if label in labels[:place]:
                raise ValueError(f"rivals: '{label}' stands there twice; give one of them another variant")
            for model in rival.models or ():
                if model not in self.models:
                    raise ValueError(
                        f"rivals: '{label}' names model '{model}', which is not registered{nearest(model, self.models)}"
                    )
            each = None if rival.training is None else rival.training.sequences_per_step
            if each is not None and each < self.draft.processes:
                raise ValueError(
                    f"rivals.{label}.training.sequences_per_step: {each} cannot be shared by the "
                    f"{self.draft.processes} processes of draft.processes"
                )
        return self

    def known_layers(self, model: str) -> int | None:
        """Return a model's number of decoder blocks, where the registry tells it."""
        config = self.models[model]
        if isinstance(config.source, TrainedSource):
            return config.source.layers
        return None if config.size is None else config.size.layers

    @model_validator(mode="after")
    def _layers_exist(self) -> Study:
        for model in self.study.models:
            layers = self.known_layers(model)
            if layers is None:
                continue
            for selector in self.selection.selectors:
                if max(selector.k) > layers and (selector.models is None or model in selector.models):
                    raise ValueError(
                        f"selection.selectors.{selector.name}.k: {max(selector.k)} is more than the {layers} layers of "
                        f"{model}"
                    )
            for layer in (self.screen.layers if self.screen else None) or ():
                if layer > layers:
                    raise ValueError(f"screen.layers: {layer} does not exist; {model} has layers 0 to {layers}")
        return self

    @model_validator(mode="after")
    def _heads_can_be_moved(self) -> Study:
        if self.transfer is None:
            return self
        trained = {selector.name: selector for selector in self.selection.selectors if selector.train}
        start = self.transfer.start
        if start in self.transfer.to:
            raise ValueError(f"transfer.to: '{start}' is transfer.start itself; expected other selectors")
        for key, name in (("start", start), *(("to", name) for name in self.transfer.to)):
            if name not in trained:
                raise ValueError(f"transfer.{key}: '{name}' is not among selection.selectors that are trained")
            if len(trained[name].k) > 1 or trained[name].k != trained[start].k:
                raise ValueError(
                    f"transfer.{key}: '{name}' chooses {trained[name].k} layers, '{start}' {trained[start].k}; "
                    "expected one and the same k, since a head moves to as many layers as it reads"
                )
            only = trained[name].models
            absent = [model for model in self.study.models if only is not None and model not in only]
            if absent:
                raise ValueError(f"transfer.{key}: '{name}' does not choose for '{absent[0]}'; widen its models")
        return self

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Study:
        acceptance = self.acceptance
        for nodes in acceptance.nodes:
            if acceptance.depth > nodes - 1:
                raise ValueError(
                    f"acceptance.depth: {acceptance.depth} is more than a tree of {nodes} nodes can hold below its root"
                )
        for tokens in acceptance.chains:
            if tokens + 1 in acceptance.nodes:
                raise ValueError(
                    f"acceptance.chains: {tokens} drafted tokens are {tokens + 1} nodes with the root, and "
                    "acceptance.nodes has a tree of as many; tables tell runs apart by their nodes, so leave one out"
                )
        _within("speed.temperatures", self.speed.temperatures, "acceptance.temperatures", acceptance.temperatures)
        _within("speed.nodes", self.speed.nodes, "acceptance.nodes", acceptance.nodes)
        _within("speed.chains", self.speed.chains, "acceptance.chains", acceptance.chains)
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
            _within(f"{where}.chains", acceptance.replicas.chains, "acceptance.chains", acceptance.chains)
        return self


def _within(key: str, values: list[Any], allowed_key: str, allowed: list[Any]) -> None:
    missing = [value for value in values if value not in allowed]
    if missing:
        raise ValueError(f"{key}: {missing[0]} is not in {allowed_key}")
