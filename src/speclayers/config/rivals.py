"""Drafters that are measured beside the heads: rivals of another kind, and their controls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from speclayers.config.drafts import DraftConfig
from speclayers.config.section import Name, Section, Seeds
from speclayers.names import RIVAL_KIND_PATTERN, RIVAL_VARIANT_PATTERN, RivalName


class SkipSearch(Section):
    """The search for layers to skip before anything is decoded: among the options of the drafters that need one."""

    trials: int = Field(100, ge=1, description="Sets of skipped layers that the search tries.")
    prompts: int = Field(8, ge=1, description="Calibration prompts that each trial answers, from the first on.")
    new_tokens: int = Field(32, ge=2, description="Longest answer in a trial, in tokens.")
    objective: Literal["layer_forwards", "time"] = Field(
        "layer_forwards",
        description="What is made small for each token emitted: decoder-layer passes, which repeat exactly, or time, "
        "which needs the machine to itself.",
    )


class RivalTraining(Section):
    """What a drafter with weights of its own is trained with: its learning rate, and what else is not as in `draft`."""

    steps: int | None = Field(None, ge=1, description="Optimiser steps; as long as the heads when not given.")
    sequences_per_step: int | None = Field(
        None, ge=1, description="Sequences in one optimiser step; those of draft when not given."
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="Steps of linear warm-up before the cosine; those of draft when not given."
    )
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate.")


class RivalConfig(Section):
    """One drafter with its options."""

    name: Annotated[str, Field(pattern=f"^{RIVAL_KIND_PATTERN}$")] = Field(
        description="Drafter, the name of a file in drafting/rivals."
    )
    variant: Annotated[str, Field(pattern=f"^{RIVAL_VARIANT_PATTERN}$")] | None = Field(
        None, description="Tells apart several entries of one drafter; becomes part of its runs' names."
    )
    draft_length: int = Field(8, ge=1, le=1023, description="Most tokens that it drafts in a row.")
    tree_nodes: int | None = Field(
        None, le=1024, description="Most nodes of its trees, the root counted; those of a chain when not given."
    )
    seeds: Seeds | None = Field(None, description="Seeds, for drafters that draw at random: one run each.")
    models: list[Name] | None = Field(
        None, min_length=1, description="Models it drafts for; all of the study when not given."
    )
    training: RivalTraining | None = Field(
        None,
        description="How it is trained, for drafters with weights of their own; as `draft` says, at its own learning "
        "rate, when not given.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of this drafter, checked by it.")

    @property
    def nodes(self) -> int:
        """Most nodes of its trees, the root counted."""
        return self.draft_length + 1 if self.tree_nodes is None else self.tree_nodes

    @model_validator(mode="after")
    def _a_path_fits_into_the_tree(self) -> RivalConfig:
        if self.nodes <= self.draft_length:
            raise ValueError(
                f"tree_nodes: {self.tree_nodes} nodes hold no path of draft_length {self.draft_length} and the root"
            )
        return self

    def training_settings(self, draft: DraftConfig) -> DraftConfig:
        """Return the settings of its training: those of the heads where it has none of its own, a step for each token.

        What only EAGLE-3's heads have is set back to its default, so that a change there does not count.
        """
        whole, own = DraftConfig(), (self.training or RivalTraining()).model_dump(exclude_none=True)
        unused = ("kv_heads", "norm_before_fc", "fc_norm", "norm_output", "initialise", "lm_head_learning_rate")
        update = {key: getattr(whole, key) for key in unused} | own | {"ttt_steps": self.draft_length}
        return draft.model_copy(update=update | ({"tokens": None} if "steps" in own else {}))

    def runs(self) -> list[RivalName]:
        """Return the names of its runs, one for each seed."""
        label = RivalName(self.name, self.variant)
        return [label] if self.seeds is None else [label._replace(seed=seed) for seed in self.seeds]
