"""Acceptance and timed runs, and the statistics of both."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from speclayers.config.section import FilePath, Name, NoRepeats, Section, Seed
from speclayers.names import temperature_name


class BundledQuestions(Section):
    """The 144 questions that come with this project."""

    source: Literal["bundled"] = Field("bundled", description="What comes with this project.")


class FileQuestions(Section):
    """Spec-Bench's question.jsonl, or any file in its format."""

    source: Literal["file"] = Field(description="A JSON-lines file.")
    path: FilePath = Field(description="Path of the JSON-lines file.")


class SpecBenchQuestions(Section):
    """The official 480 questions, checked by SHA-256."""

    source: Literal["spec_bench"] = Field(description="The official file.")
    path: FilePath | None = Field(
        None, description="Where the official file lies already; downloaded at a pinned commit when not given."
    )


Questions = Annotated[BundledQuestions | FileQuestions | SpecBenchQuestions, Field(discriminator="source")]


def _plain_temperature(value: float) -> float:
    name = temperature_name(value)
    if not re.fullmatch(r"\d+(\.\d{1,4})?", name) or float(name) != value:
        raise ValueError(f"{value} has more than four decimals; it becomes part of file names")
    return value


Temperature = Annotated[float, Field(ge=0, le=10), AfterValidator(_plain_temperature)]
Temperatures = Annotated[list[Temperature], NoRepeats]
Nodes = Annotated[list[Annotated[int, Field(ge=2, le=1024)]], NoRepeats]


Chains = Annotated[list[Annotated[int, Field(ge=1, le=1023)]], NoRepeats]


class ReplicaSettings(Section):
    """The settings at which every training seed is measured; others are measured for the first seed."""

    temperatures: Temperatures = Field(min_length=1, description="Temperatures measured for every seed.")
    nodes: Nodes = Field(min_length=1, description="Tree sizes measured for every seed.")
    chains: Chains = Field(default_factory=list, description="Chains measured for every seed, in drafted tokens.")


class SamplingLimits(Section):
    """Which tokens sampling draws from at temperatures above 0, the same for plain decoding and every drafter."""

    top_k: int | None = Field(
        None, ge=1, description="The likeliest so many, and ties of the last; all when not given."
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Of these, the fewest likeliest that together hold this probability; 1 keeps all."
    )


class AcceptanceConfig(Section):
    """Acceptance runs: questions, sampling and draft tree."""

    questions: Questions = Field(default_factory=BundledQuestions, description="Benchmark questions.")
    per_category: int | None = Field(None, ge=1, description="Questions of each category; all when not given.")
    per_subcategory: int | None = Field(
        None, ge=1, description="Instead: questions of each of Spec-Bench's thirteen, the eight of mt_bench apart."
    )
    max_new_tokens: int = Field(128, ge=2, description="Longest answer of a turn, in tokens.")
    temperatures: Temperatures = Field(
        default_factory=lambda: [0.0, 1.0], min_length=1, description="Sampling temperatures; 0 is greedy."
    )
    sampling: SamplingLimits = Field(
        default_factory=SamplingLimits, description="Limits of sampling at temperatures above 0."
    )
    nodes: Nodes = Field(default_factory=lambda: [30, 60], min_length=1, description="Tree sizes, the root counted.")
    chains: Chains = Field(
        default_factory=list,
        description="Chains measured beside the trees, in drafted tokens: what vLLM and others without trees serve.",
    )
    depth: int = Field(6, ge=1, description="Longest drafted path.")
    top_k: int = Field(10, ge=1, description="Children tried per node, and nodes expanded per level.")
    replicas: ReplicaSettings | None = Field(
        None, description="Settings measured for every training seed; all settings when not given."
    )
    check_generate: bool = Field(
        True, description="Decode the greedy baseline again with transformers' own generate and compare every token."
    )
    shards: int = Field(
        1, ge=1, le=1000, description="Jobs that share the questions of a run; the tables do not depend on it."
    )
    seed: Seed = Field(0, description="Seed of sampling; every question and turn has its own stream.")

    @model_validator(mode="after")
    def _one_way_of_choosing(self) -> AcceptanceConfig:
        if self.per_category is not None and self.per_subcategory is not None:
            raise ValueError(
                f"per_subcategory: found {self.per_subcategory} beside per_category {self.per_category}; "
                "expected one of the two, the other null"
            )
        return self


class SpeedConfig(Section):
    """Timed runs, on fewer questions and on the whole machine."""

    per_category: int = Field(1, ge=1, description="Questions of each category.")
    max_new_tokens: int = Field(32, ge=2, description="Longest answer of a turn, in tokens.")
    temperatures: Temperatures = Field(default_factory=lambda: [0.0], description="Temperatures that are timed.")
    nodes: Nodes = Field(default_factory=lambda: [30], description="Tree sizes that are timed.")
    chains: Chains = Field(default_factory=list, description="Chains that are timed, in drafted tokens.")
    seeds: Annotated[list[Seed], NoRepeats] = Field(
        default_factory=lambda: [0], description="Training seeds whose heads are timed."
    )


class StatisticsConfig(Section):
    """How differences are judged."""

    reference: Name = Field("eagle3", description="Selector that every other set is compared with.")
    resamples: int = Field(10_000, ge=100, description="Bootstrap resamples.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Level of the intervals.")
    seed: Seed = Field(0, description="Seed of the bootstrap.")
