"""Small training corpora and heads for tests of drafting."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from speclayers.config import DraftConfig
from speclayers.drafting.feature_store import FeatureStore
from speclayers.drafting.features import extract
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.training import Trainer, new_trainer
from speclayers.drafting.vocabulary import DraftVocabulary
from speclayers.names import HeadName
from speclayers.tables import Origin
from speclayers.targets.target import Target

ORIGIN = Origin(model="tiny", fingerprint="f00d")
SETTINGS = {"vocabulary": 64, "ttt_steps": 3, "steps": 12, "warmup_steps": 2, "checkpoint_every": 4, "held_out": 0.0}


class TrainedHead(NamedTuple):
    """A trained head and its training table."""

    head: Eagle3Head
    table: pd.DataFrame


def make_corpus(
    sequences: int, prompt: int = 6, response: int = 12, seed: int = 0, vocabulary: int = 256, turns: int = 1
):
    """Random tokens from 2 on, so that neither end (0) nor padding (1) occurs; lengths vary by a few tokens."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(sequences):
        start = prompt + number % 3
        ids = random.integers(2, vocabulary, size=start + response + number % 2).astype(np.int32)
        name, turn = f"s{number // turns}", number % turns
        sample = f"{name}/{turn}" if turn else name
        rows.append({"sample_id": sample, "prompt_id": name, "turn": turn, "input_ids": ids, "response_start": start})
    return pd.DataFrame(rows).assign(source="bundled", category="qa", text="", prompt_hash="")


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


def trainer_of(setting, checkpoints: Path, name: str = "eagle3.l01-l03-l05.s0", start=None, **settings) -> Trainer:
    """Return a trainer of a target, corpus and source of features, with SETTINGS but for those given."""
    checkpoints.mkdir(exist_ok=True)
    draft = DraftConfig(**{**SETTINGS, **settings})
    return new_trainer(HeadName.parse(name), *setting, draft, "fingerprint", checkpoints, start)


def run(setting, checkpoints: Path, name: str = "eagle3.l01-l03-l05.s0", **settings) -> TrainedHead:
    trainer = trainer_of(setting, checkpoints, name, **settings)
    trainer.run()
    return TrainedHead(trainer.head, trainer.table())


def weights(head: Eagle3Head) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in head.state_dict().items()}


def assert_equal(first: TrainedHead, second: TrainedHead) -> None:
    torch.testing.assert_close(weights(first.head), weights(second.head), rtol=0, atol=0)
    assert first.table.equals(second.table)
