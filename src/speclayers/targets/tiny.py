"""Training a small model on another model's text: a second target for machines that can hold no real one."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM

from speclayers.config import Runtime, TrainedSource
from speclayers.errors import UserError
from speclayers.files import atomic_path
from speclayers.targets.describe import Provenance, describe_folder
from speclayers.targets.manifest import Manifest, read_manifest, write_manifest
from speclayers.targets.staging import replaced_folder
from speclayers.targets.target import load_target

logger = logging.getLogger(__name__)

CONTEXT = 2048
CHECKPOINT_EVERY = 50
WARMUP_STEPS = 20
FINAL_RATE = 0.1
"""Learning rate at the last step, as a share of its peak."""
BETAS = (0.9, 0.95)
GRADIENT_CLIP = 1.0
NEGATIVES = 1024
"""Tokens absent from the text that stand for all of those in a step's softmax."""
LENGTH_BUCKET = 16
LOG_EVERY_S = 30.0
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges*")


def train_tiny_model(
    source: TrainedSource, name: str, teacher: Path, corpus: pd.DataFrame, output: Path, work: Path
) -> Manifest:
    """Train a small model on its teacher's prompts and responses and write it as a fetched model.

    Args:
        source: Sizes and schedule.
        name: Name in the registry.
        teacher: Folder of the teacher: its tokenizer, manifest and token embeddings are read.
        corpus: The teacher's rows of the table CORPUS.
        output: Folder to write; it appears whole.
        work: Folder of the checkpoint from which a killed run continues to the same weights.

    Raises:
        UserError: The corpus holds no sequence of at least two tokens.
    """
    described = read_manifest(teacher)
    sequences = [torch.tensor(ids[:CONTEXT].tolist()) for ids in corpus["input_ids"] if len(ids) > 1]
    if not sequences:
        raise UserError(f"{name}: its teacher's corpus holds no sequence to learn from")
    model = _new_model(source, described)
    _start_from_teacher(model, teacher, source.teacher)
    _train(model, _Text(sequences, source, described), source, name, work)
    with replaced_folder(output) as staging:
        model.save_pretrained(staging)
        for path in sorted({path for pattern in (*TOKENIZER_FILES, "*.model") for path in teacher.glob(pattern)}):
            shutil.copyfile(path, staging / path.name)
        manifest = describe_folder(
            staging, name, Provenance(source.model_dump(mode="json"), described.target_hash[:12], described.licence)
        )
        write_manifest(staging, manifest)
    return manifest


def _new_model(source: TrainedSource, teacher: Manifest) -> Any:
    config = AutoConfig.for_model(
        source.architecture,
        vocab_size=teacher.vocabulary,
        hidden_size=source.width,
        num_hidden_layers=source.layers,
        num_attention_heads=source.heads,
        num_key_value_heads=source.kv_heads,
        head_dim=source.width // source.heads,
        intermediate_size=source.mlp_width,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=teacher.stop_ids[0] if len(teacher.stop_ids) == 1 else teacher.stop_ids,
        pad_token_id=teacher.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws its initial weights from the global generator
        torch.manual_seed(source.seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _start_from_teacher(model: Any, teacher: Path, name: str) -> None:
    """Give a new model its teacher's token embeddings, projected to its width, at the scale that it was born with.

    So tokens that the little text never shows start where their neighbours in meaning are. The projection keeps
    the principal components; a model wider than its teacher keeps its random embeddings in the other columns.
    """
    with torch.no_grad():
        embedding: Any = load_target(teacher, name, Runtime()).anatomy.embedding
        theirs = embedding.weight.double()
        own = model.get_input_embeddings().weight
        centred = theirs - theirs.mean(0)
        directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, : own.shape[1]]
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        projected = centred @ (directions * largest.sign())  # an eigenvector's sign is arbitrary
        own[:, : projected.shape[1]] = (projected * (own.std() / projected.std())).to(own.dtype)


class _Batch(NamedTuple):
    """Right-padded token ids (sequences, tokens) and which of them are text."""

    ids: torch.Tensor
    is_text: torch.Tensor


class _Text:
    """The training text, as batches that depend on seed and step only."""

    def __init__(self, sequences: Sequence[torch.Tensor], source: TrainedSource, teacher: Manifest) -> None:
        self.sequences = sequences
        self.size = min(source.sequences_per_step, len(sequences))
        self.seed = source.seed
        self.pad = teacher.pad_token_id
        self.vocabulary = teacher.vocabulary
        self.seen = torch.unique(torch.cat(list(sequences)))
        unseen = torch.ones(teacher.vocabulary, dtype=torch.bool)
        unseen[self.seen] = False
        self.unseen = unseen.nonzero()[:, 0]

    def batch(self, step: int) -> _Batch:
        """Return the batch of a step: sequences of similar length, every sequence once an epoch."""
        batches = math.ceil(len(self.sequences) / self.size)
        epoch, place = divmod(step, batches)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(self.sequences), generator=generator).tolist()
        shuffled.sort(key=lambda index: len(self.sequences[index]) // LENGTH_BUCKET)  # stable: order stays random
        start = int(torch.randperm(batches, generator=generator)[place]) * self.size
        chosen = [self.sequences[index] for index in shuffled[start : start + self.size]]
        ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=self.pad)
        lengths = torch.tensor([len(ids) for ids in chosen])
        return _Batch(ids, torch.arange(ids.shape[1])[None] < lengths[:, None])

    def candidates(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of a step's softmax, ascending within each kind, and their log-weights.

        Every token of the text takes part; of the others a sample, weighted to stand for all of them
        (importance-sampled softmax, Jean et al. 2015, arXiv 1412.2007): the whole vocabulary would take
        most of the time.
        """
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + 500_000_000 + step)
        count = min(NEGATIVES, len(self.unseen))
        drawn = self.unseen[torch.randperm(len(self.unseen), generator=generator)[:count]]
        weights = torch.zeros(len(self.seen) + count)
        if count:
            weights[len(self.seen) :] = math.log(len(self.unseen) / count)
        return torch.cat([self.seen, drawn]), weights


def _loss(model: Any, text: _Text, step: int) -> torch.Tensor:
    """Return the mean next-token cross-entropy over a batch's text, prompts included."""
    ids, is_text = text.batch(step)
    # Padding follows the text, where causal attention keeps it from being seen: no mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][is_text[:, 1:]]
    tokens, weights = text.candidates(step)
    logits = hidden @ model.get_output_embeddings().weight[tokens].T + weights
    return F.cross_entropy(logits, torch.searchsorted(text.seen, ids[:, 1:][is_text[:, 1:]]))


def _train(model: Any, text: _Text, source: TrainedSource, name: str, work: Path) -> None:
    parameters = dict(model.named_parameters())
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=source.learning_rate, betas=BETAS, weight_decay=0.0, fused=True
    )
    checkpoint = work / "checkpoint.safetensors"
    first = _restore(parameters, optimiser, checkpoint)
    if first:
        logger.info("%s: continues after step %d", name, first)
    model.train()
    logged = time.monotonic()
    for step in tqdm(range(first, source.steps), initial=first, total=source.steps, disable=None, mininterval=1):
        for group in optimiser.param_groups:
            group["lr"] = source.learning_rate * _rate(step, source.steps)
        loss = _loss(model, text, step)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters.values(), GRADIENT_CLIP)
        optimiser.step()
        if (step + 1) % CHECKPOINT_EVERY == 0:
            _store(parameters, optimiser, step + 1, checkpoint)
        if time.monotonic() - logged > LOG_EVERY_S or step + 1 == source.steps:
            logged = time.monotonic()
            logger.info("%s: step %d of %d, loss %.3f nats", name, step + 1, source.steps, float(loss.detach()))
    model.eval()


def _rate(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: linear warm-up, then a cosine."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(steps - WARMUP_STEPS, 1)
    return FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def _store(parameters: dict[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer, step: int, path: Path) -> None:
    tensors = {"step": torch.tensor(step)}
    for name, parameter in parameters.items():
        state = optimiser.state[parameter]
        tensors |= {f"weight.{name}": parameter.detach()}
        tensors |= {f"{key}.{name}": state[key] for key in ("exp_avg", "exp_avg_sq")}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)


def _restore(parameters: dict[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer, path: Path) -> int:
    """Read the checkpoint into weights and optimiser; return the number of steps done, 0 without one."""
    if not path.is_file():
        return 0
    tensors = load_file(path)
    step = int(tensors["step"])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight.{name}"])
            optimiser.state[parameter] = {
                "step": torch.tensor(float(step)),
                "exp_avg": tensors[f"exp_avg.{name}"],
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"],
            }
    return step
