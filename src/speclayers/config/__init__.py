"""The study's config: one strict pydantic model per section, every value with a default and a meaning.

Imported by the Snakefile, which every job parses again, so neither torch nor pandas is imported here.
"""

from speclayers.config.acceptance import (
    AcceptanceConfig,
    FileQuestions,
    Questions,
    ReplicaSettings,
    SamplingLimits,
    SpecBenchQuestions,
    SpeedConfig,
    StatisticsConfig,
)
from speclayers.config.corpus import DatasetPrompts, FilePrompts, SplitConfig
from speclayers.config.drafts import MOST_STEPS, DraftConfig, Loss, ScreenConfig
from speclayers.config.export import ExportConfig, PretrainedHead
from speclayers.config.geometry import (
    DeviceName,
    GeometryConfig,
    Preprocessing,
    Scope,
    SelectionConfig,
    SelectorConfig,
    TurningScore,
)
from speclayers.config.models import FolderSource, HubSource, PackageSource, Runtime, Source, TrainedSource
from speclayers.config.rivals import RivalConfig, RivalTraining, SkipSearch
from speclayers.config.section import Section, nearest
from speclayers.config.study import Study

__all__ = [
    "MOST_STEPS",
    "AcceptanceConfig",
    "DatasetPrompts",
    "DeviceName",
    "DraftConfig",
    "ExportConfig",
    "FilePrompts",
    "FileQuestions",
    "FolderSource",
    "GeometryConfig",
    "HubSource",
    "Loss",
    "PackageSource",
    "Preprocessing",
    "PretrainedHead",
    "Questions",
    "ReplicaSettings",
    "RivalConfig",
    "RivalTraining",
    "Runtime",
    "SamplingLimits",
    "Scope",
    "ScreenConfig",
    "Section",
    "SelectionConfig",
    "SelectorConfig",
    "SkipSearch",
    "Source",
    "SpecBenchQuestions",
    "SpeedConfig",
    "SplitConfig",
    "StatisticsConfig",
    "Study",
    "TrainedSource",
    "TurningScore",
    "nearest",
]
