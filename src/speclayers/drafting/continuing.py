"""Training on of a head that was trained elsewhere: its weights, vocabulary and norms stay its own."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd

from speclayers.config import DraftConfig
from speclayers.drafting.checkpoints import weights_hash
from speclayers.drafting.feature_store import FeatureSource
from speclayers.drafting.features import check_tokens
from speclayers.drafting.head import Eagle3Head, head_from_tensors, read_head_config
from speclayers.drafting.processes import Processes
from speclayers.drafting.tensor_files import CONFIG_FILE, WEIGHTS_FILE, read_tensors
from speclayers.drafting.training import Trainer
from speclayers.drafting.training_data import TrainingData, trained_responses
from speclayers.drafting.training_loop import ALONE
from speclayers.drafting.transfer import share_of_training
from speclayers.errors import UserError
from speclayers.names import PretrainedName
from speclayers.targets.target import Target

logger = logging.getLogger(__name__)


def continued_trainer(
    name: PretrainedName,
    folder: Path,
    target: Target,
    corpus: pd.DataFrame,
    source: FeatureSource,
    draft: DraftConfig,
    fingerprint: str,
    checkpoints: Path,
    processes: Processes = ALONE,
) -> Trainer:
    """Return a head from elsewhere, ready to be trained for its share; a killed training continues.

    Args:
        name: What it becomes.
        folder: Folder of the head as it was imported.
        target: The model it drafts for.
        corpus: Rows of the training corpus.
        source: Features of that corpus.
        draft: Settings of a whole training.
        fingerprint: Fingerprint of settings and code; part of the head's config.
        checkpoints: Folder of this training's checkpoints.
        processes: The processes that train this head together.

    Raises:
        UserError: The name asks for no training, or the head is another one, another model's, or broken.
    """
    if name.seed is None:
        raise UserError(f"--head: {name} is the head as it came; expected the form pretrained.published.p10.s0")
    head = _start(folder, name, name.seed, target, fingerprint)
    check_tokens(target, corpus)
    head.config = head.config.model_copy(
        update={"coverage": _coverage(head, trained_responses(corpus, draft.held_out))}
    )
    weights = {key: parameter.detach() for key, parameter in head.named_parameters()}
    key = f"{name}/{fingerprint}/{source.key}/{weights_hash(weights)}"
    data = TrainingData(target, corpus, source, head.config.layers, head.draft_ids, draft.ttt_steps)
    learnt, held_out = data.split(draft.held_out)
    share = share_of_training(draft, name.percent)
    return Trainer(head.to(target.device), learnt, share, checkpoints, key, held_out, processes)


def _start(folder: Path, name: PretrainedName, seed: int, target: Target, fingerprint: str) -> Eagle3Head:
    config = read_head_config(folder / CONFIG_FILE)
    if config.target_hash != target.manifest.target_hash:
        raise UserError(f"--start: {folder} was imported for {config.target}; import it again for {target.name}")
    if folder.name != str(PretrainedName(name.entry)) or config.started_from is not None:
        raise UserError(f"--start: {folder} is not {PretrainedName(name.entry)} as it came, from which {name} starts")
    became = {"seed": seed, "fingerprint": fingerprint, "percent": name.percent}
    config = config.model_copy(update=became | {"started_from": str(PretrainedName(name.entry))})
    return head_from_tensors(config, read_tensors(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)


def _coverage(head: Eagle3Head, responses: list[np.ndarray]) -> float | None:
    """Return the share of response tokens that the head's own vocabulary holds; None where there is no token."""
    ids = np.concatenate([np.empty(0, np.int64), *responses])
    if not len(ids):
        return None
    share = float(np.isin(ids, head.draft_ids.cpu().numpy()).mean())
    logger.info("its draft vocabulary covers %.1f %% of %d response tokens", 100 * share, len(ids))
    return share
