"""How large a model is, known before it is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from speclayers.config import Study, TrainedSource
from speclayers.layout import Layout
from speclayers.targets.manifest import Manifest, read_manifest

STORED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Size(NamedTuple):
    """Sizes of a model, as in its manifest.

    Args:
        parameters: Number of weights; tied ones count once.
        layers: Number of decoder blocks, N.
        width: Width of the residual stream.
        vocabulary: Rows of the embedding.
        known_from: Where these numbers come from, in words.
    """

    parameters: int
    layers: int
    width: int
    vocabulary: int
    known_from: str

    @property
    def states(self) -> int:
        """Number of hidden states of a token: one a layer, and the embedding's."""
        return self.layers + 1


ASSUMED = Size(8_000_000_000, 32, 4096, 128_256, "assumed: neither fetched yet nor given as models.NAME.size")
"""A model of which nothing is known: rather too large, so that its jobs ask for enough."""


def size_of(study: Study, model: str, layout: Layout) -> Size:
    """Return a model's size: from its manifest once it is fetched, else from the registry, else ASSUMED.

    Raises:
        UserError: The manifest is broken.
    """
    manifest = Path(layout.manifest(model))
    if manifest.exists():
        return _measured(read_manifest(manifest.parent))
    config = study.models[model]
    if isinstance(config.source, TrainedSource):
        return _trained(config.source, size_of(study, config.source.teacher, layout).vocabulary)
    if config.size is not None:
        return Size(**config.size.model_dump(), known_from="models.NAME.size")
    return ASSUMED


def _measured(manifest: Manifest) -> Size:
    return Size(manifest.parameters, manifest.layers, manifest.width, manifest.vocabulary, "its manifest")


def _trained(source: TrainedSource, vocabulary: int) -> Size:
    """Count the weights of a small model: tied embedding, q and o, k and v, gated MLP; norms are left out."""
    width = source.width
    block = 2 * width**2 * (1 + source.kv_heads / source.heads) + 3 * width * source.mlp_width
    parameters = vocabulary * width + source.layers * int(block)
    return Size(parameters, source.layers, width, vocabulary, "models.NAME.source")
