"""The head, its training-time test, loss and gradient, against packages that nobody here wrote.

speculators 0.9.0 takes every number of layers and every flag; it has no slots without a target, so a
step's mean is over all slots there, and none of ours is left out: all best tokens lie in the draft
vocabulary. Its LM head is frozen, so its gradient there cannot be compared.

SpecForge 0.2.0 asserts three layers, so k = 1 and k = 4 cannot be compared. It has no `norm_before_fc`; what
it calls `norm_output` is the norm before the LM head, so ours cannot be switched on there. It packs no
documents into a row and its loss needs a GPU compiler: logits of one document.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from speclayers.drafting.ttt import ttt_loss
from tests.drafts import make_head
from tests.models import make_target
from tests.oracles.cases import DECAY, STEPS, Case, check_logits, make_case, read_answer, write_case
from tests.oracles.environment import run_oracle

LAYERS = {1: (3,), 3: (1, 3, 5), 4: (0, 2, 4, 6)}
FLAGS = ("norm_before_fc", "fc_norm", "norm_output")
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
HEADS = {
    f"k{k}" + "".join(f"-{flag}" for flag, on in zip(FLAGS, values, strict=True) if on): (k, values)
    for k, values in itertools.product(LAYERS, itertools.product((False, True), repeat=3))
    if values[:2] != (True, True)  # speculators and this project refuse the two together
}
SPECFORGE = ("k3", "k3-fc_norm")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    target = make_target(tmp_path_factory.mktemp("target"), width=64, rope_parameters=LLAMA3)
    draft_ids = range(0, 256, 2)
    return {
        name: make_case(make_head(target, LAYERS[k], draft_ids, **dict(zip(FLAGS, values, strict=True))), seed=number)
        for number, (name, (k, values)) in enumerate(HEADS.items())
    }


def answers(oracle: str, cases: dict[str, Case], folder: Path, **variables: str) -> Path:
    for name, case in cases.items():
        (folder / name).mkdir()
        write_case(folder / name, case)
    run_oracle(oracle, folder, **variables)
    return folder


@pytest.fixture(scope="module")
def speculators(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answers("speculators", cases, tmp_path_factory.mktemp("speculators"))


@pytest.fixture(scope="module")
def specforge(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = {name: cases[name] for name in SPECFORGE}
    return answers("specforge", chosen, tmp_path_factory.mktemp("specforge"), TORCHDYNAMO_DISABLE="1")


@pytest.mark.parametrize("name", HEADS)
def test_speculators_computes_the_same_logits_at_every_step(cases, speculators, name):
    check_logits(cases[name], read_answer(speculators / name), documents=2)


@pytest.mark.parametrize("loss", ["kl", "lk"])
@pytest.mark.parametrize("name", HEADS)
def test_speculators_computes_the_same_loss_and_gradient(cases, speculators, name, loss):
    case, theirs = cases[name], read_answer(speculators / name)
    head = case.head
    head.zero_grad()
    value, _ = ttt_loss(head, case.sequences()[:1], case.targets(STEPS), DECAY, loss)
    value.backward()
    torch.testing.assert_close(value.detach(), theirs[f"loss.{loss}"], rtol=1e-5, atol=1e-5)
    compared = {name: parameter.grad for name, parameter in head.named_parameters() if name != "lm_head.weight"}
    assert {f"gradient.{loss}.{name}" for name in compared} == {k for k in theirs if k.startswith(f"gradient.{loss}.")}
    for parameter, gradient in compared.items():
        torch.testing.assert_close(gradient, theirs[f"gradient.{loss}.{parameter}"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", SPECFORGE)
def test_specforge_computes_the_same_logits_at_every_step(cases, specforge, name):
    check_logits(cases[name], read_answer(specforge / name), documents=1)
