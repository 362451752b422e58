"""Geometry of the layers, and the selectors that choose among them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from speclayers.config.section import Name, NoRepeats, Section, Seed, Seeds, Share

Scope = Literal["per_prompt", "pooled", "absolute"]
Preprocessing = Literal["centre", "none", "row_norm", "centre_row_norm"]
TurningScore = Literal["cka", "row_difference", "novelty"]
DeviceName = Literal["cpu", "cuda"]


class GeometryConfig(Section):
    """Matrix entropy and CKA of the layers."""

    keep_share: Share = Field(0.3, description="Share of response tokens of highest predictive entropy that is kept.")
    filter_scope: Scope = Field(
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
    preprocessing: Preprocessing = Field("centre", description="What is done to the rows before the Gram matrix.")
    information_flow: bool = Field(
        False,
        description="Add a column with the entropy as the package information_flow computes it, to compare with its.",
    )
    device: DeviceName = Field("cpu", description="Where the products of the Gram matrices are formed, in float64.")
    shards: int = Field(1, ge=1, le=64, description="Jobs that share these products; 1 is no job of their own.")
    blocks: int = Field(32, ge=4, le=64, description="Blocks of prompts of the jackknife.")
    search_rows: int = Field(1024, ge=8, description="Rows, drawn at random, on which E(S) of layer sets is computed.")
    effect_tokens: int = Field(32, ge=4, description="Response tokens of each prompt in the filter-effect table.")
    turning_score: TurningScore = Field("cka", description="What marks a turning point between neighbouring layers.")
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
    models: list[Name] | None = Field(
        None, min_length=1, description="Models it chooses for; all of the study when not given."
    )
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

    @field_validator("selectors")
    @classmethod
    def _differ(cls, selectors: list[SelectorConfig]) -> list[SelectorConfig]:
        for place, selector in enumerate(selectors):
            if selector in selectors[:place]:
                raise ValueError(f"'{selector.name}' stands there twice with the same settings")
            if selector.name == "screen":
                raise ValueError("'screen' is what the screening's winner is called; choose another name")
        return selectors
