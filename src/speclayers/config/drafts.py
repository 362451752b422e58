"""Draft heads: their training, screening, and moves to other layers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from speclayers.config.section import Name, NoRepeats, Section, Seed, Seeds

MOST_STEPS = 16
"""Most tokens ahead that anything is trained to draft."""

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
    ttt_steps: int = Field(7, ge=1, le=MOST_STEPS, description="Steps of training-time test.")
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
    compile: bool = Field(
        False,
        description="Compile attention, logits and loss with torch.compile; on a processor this takes a C++ compiler.",
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
        description="Share of the candidates that goes on; the budget, counted from the start, grows by its inverse.",
    )
    layers: Annotated[list[Annotated[int, Field(ge=0)]], NoRepeats] | None = Field(
        None, description="Single layers that are candidates beside the selectors' sets; 1 to N when not given."
    )
    judged_prompts: int = Field(
        64, ge=2, description="Most of the prompts held out by draft.held_out, the first ones, that judge candidates."
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
