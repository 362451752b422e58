"""Small training corpora and heads for tests of drafting."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from speclayers.config import DraftConfig
from speclayers.drafting.feature_store import FeatureStore
from speclayers.drafting.features import extract
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.vocabulary import DraftVocabulary
from speclayers.tables import Origin
from speclayers.targets.target import Target

ORIGIN = Origin(model="tiny", fingerprint="f00d")


def make_corpus(sequences: int, prompt: int = 6, response: int = 12, seed: int = 0, vocabulary: int = 256):
    """Random tokens from 2 on, so that neither end (0) nor padding (1) occurs; lengths vary by a few tokens."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(sequences):
        start = prompt + number % 3
        ids = random.integers(2, vocabulary, size=start + response + number % 2).astype(np.int32)
        rows.append({"sample_id": f"s{number}", "input_ids": ids, "response_start": start})
    return pd.DataFrame(rows).assign(source="bundled", category="qa", turn=0, text="", prompt_hash="")


def make_store(tmp_path: Path, target: Target, corpus: pd.DataFrame, layers) -> FeatureStore:
    extract(target, corpus, layers, tmp_path / "features" / "manifest.json", tmp_path / "features-work", ORIGIN)
    return FeatureStore([tmp_path / "features" / "manifest.json"])


def make_head(
    target: Target,
    layers=(1, 3, 5),
    draft_ids=range(0, 256, 2),
    seed: int = 0,
    **settings,
) -> Eagle3Head:
    vocabulary = DraftVocabulary(torch.tensor(list(draft_ids)), 1.0)
    draft = DraftConfig(**settings)
    config = head_config(target, draft, layers, seed, "fingerprint", vocabulary)
    return new_head(config, vocabulary, target, draft.initialise)
