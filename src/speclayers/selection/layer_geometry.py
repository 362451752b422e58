"""What selectors see of a model's geometry, measured on all prompts or on a half-sample of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from speclayers.config import Section
from speclayers.errors import UserError
from speclayers.geometry.gram import renyi2
from speclayers.names import Layers


class LayerOptions(Section):
    """Options of every selector that ranks layers by entropy."""

    per_prompt: bool = Field(False, description="Rank layers by the mean of the prompts' entropies, not the pooled.")
    embedding: bool = Field(False, description="Whether layer 0, the embedding output, may be chosen.")


@dataclass(frozen=True)
class LayerGeometry:
    """Entropy and similarity of all layers on filtered rows without sinks.

    Args:
        entropy: Pooled Shannon entropy S(l), (N + 1,) nats.
        prompt_entropy: Mean over prompts of their Shannon entropies, (N + 1,) nats.
        cka: Debiased CKA, (N + 1, N + 1).
        gram: Q, the inner products of the unit-trace Gram matrices, (N + 1, N + 1).
        shannon: E(S) of a layer set in nats. On a half-sample it is None: order 2 from `gram` stands in for sets,
            and S(l) is at hand for one layer.
        lens: Mean over tokens of the logit lens' entropies, (N + 1,) nats; None or NaN where none was computed.
    """

    entropy: np.ndarray
    prompt_entropy: np.ndarray
    cka: np.ndarray
    gram: np.ndarray
    shannon: Callable[[Layers], float] | None = None
    lens: np.ndarray | None = None

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks N."""
        return len(self.entropy) - 1

    def candidates(self, options: LayerOptions | None = None) -> list[int]:
        """Return the layers that may be chosen: 1 … N, and 0 if the options say so."""
        return list(range(0 if options is not None and options.embedding else 1, self.n_layers + 1))

    def layer_entropy(self, options: LayerOptions) -> np.ndarray:
        """Return the S(l) that the options ask for, (N + 1,) nats.

        Raises:
            UserError: Entropies per prompt are asked for, and no prompt has two filtered tokens.
        """
        if options.per_prompt and np.isnan(self.prompt_entropy).any():
            raise UserError("selection.selectors: per_prompt needs prompts of two filtered tokens or more; found none")
        return self.prompt_entropy if options.per_prompt else self.entropy

    def lens_entropy(self) -> np.ndarray:
        """Return the mean entropy over the vocabulary read off each layer, (N + 1,) nats.

        Raises:
            UserError: None was computed.
        """
        if self.lens is None or np.isnan(self.lens).any():
            raise UserError("selection.selectors.lens: no token was read out; raise geometry.lens_tokens")
        return self.lens

    def set_entropy(self, layers: Sequence[int]) -> float:
        """Return E(S) in nats: Shannon's, or on a half-sample of order 2 for more than one layer."""
        chosen = tuple(sorted(layers))
        if self.shannon is not None:
            return self.shannon(chosen)
        return float(self.entropy[chosen[0]]) if len(chosen) == 1 else renyi2(self.gram, chosen)

    def highest_cka(self, layer: int, chosen: Sequence[int]) -> float:
        """Return the highest CKA of a layer to those chosen.

        Raises:
            UserError: It is unknown, as too few tokens differ.
        """
        highest = float(self.cka[layer, list(chosen)].max())
        if np.isnan(highest):
            raise UserError(
                f"selection.selectors: layer {layer} has no debiased CKA, as too few filtered tokens differ; "
                "raise corpus.calibration.count or use selectors without CKA"
            )
        return highest

    def known(self) -> bool:
        """Tell whether entropy and CKA of the layers 1 … N are all known."""
        return bool(np.isfinite(self.entropy[1:]).all() and np.isfinite(self.cka[1:, 1:]).all())
