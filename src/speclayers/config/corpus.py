"""Prompts, and the target's responses to them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from speclayers.config.section import FilePath, Section, Seed


class BundledPrompts(Section):
    """The prompt generator that comes with this project."""

    source: Literal["bundled"] = Field("bundled", description="What comes with this project.")


class FilePrompts(Section):
    """JSON lines with `prompt`, `turns` or chat `messages`."""

    source: Literal["file"] = Field(description="A JSON-lines file.")
    path: FilePath = Field(description="Path of the JSON-lines file.")


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
