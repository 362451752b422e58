"""Heads that leave a study for an engine, and heads that come from elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from speclayers.config.section import FilePath, Name, NoRepeats, Section

Engine = Literal["eagle", "sglang", "vllm", "speculators"]
ALL: tuple[Engine, ...] = ("eagle", "sglang", "vllm", "speculators")


class ExportConfig(Section):
    """What exported heads look like."""

    engines: Annotated[list[Engine], NoRepeats] = Field(
        default_factory=lambda: list(ALL),
        min_length=1,
        description="Engines that `snakemake export` writes a folder for, where they can serve the head.",
    )
    dtype: Literal["target", "float32", "bfloat16", "float16"] = Field(
        "target", description="Precision of the weights; target: that in which the target runs."
    )
    speculative_tokens: int = Field(
        3, ge=1, description="Tokens drafted in a row, for configs and commands of engines that ask for a number."
    )


class PretrainedHead(Section):
    """An EAGLE-3 head that was trained elsewhere."""

    model: Name = Field(description="Registered model that it drafts for.")
    path: FilePath | None = Field(None, description="Folder with its config.json and safetensors.")
    repo: str | None = Field(
        None, pattern=r"^[\w.-]+/[\w.-]+$", description="Its repository on the Hugging Face hub, in place of a folder."
    )
    revision: str = Field("main", description="Branch, tag or commit of the repository.")
    layers: Annotated[list[Annotated[int, Field(ge=0)]], NoRepeats] | None = Field(
        None,
        min_length=1,
        description="Layers that it reads, as hidden-state indices; those of its config.json when not given.",
    )
    percents: Annotated[list[Annotated[int, Field(ge=0, le=100)]], NoRepeats] = Field(
        default_factory=lambda: [0],
        min_length=1,
        description="Per cent of a head's training that it gets here before it is measured; 0 measures it as it came.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> PretrainedHead:
        if (self.path is None) == (self.repo is None):
            raise ValueError("expected either path or repo")
        return self
