"""Exported folders, loaded by the packages whose layouts they are, compute the logits of the head.

speculators 0.9.0 loads every number of layers and every norm with its own `from_pretrained`. SpecForge 0.2.0 asserts
three layers, so a head of one is compared as it is padded for SGLang, and k = 4 cannot be; its `norm_output` means
another thing, so that flag cannot be. Neither drafts trees, and vLLM and SGLang themselves need a GPU: acceptance is
compared with EAGLE's loop by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from speclayers.export.folder import export_head
from tests.exports import LAYERS, LLAMA3, SPEC, drawn_head, folder_of, served
from tests.models import make_target
from tests.oracles.cases import Case, check_logits, make_case, read_answer, write_case
from tests.oracles.environment import run_oracle

SPECULATORS = {
    **{f"k{k}": (k, {}) for k in (1, 3, 4)},
    "k3-norm_before_fc": (3, {"norm_before_fc": True}),
    "k1-fc_norm-norm_output": (1, {"fc_norm": True, "norm_output": True}),
    "k3-norm_before_residual": (3, {"residual": True}),
    "k3-whole_vocabulary": (3, {"draft_ids": range(256), "vocabulary": 256}),
}
SGLANG = {"k3": (3, {}), "k1": (1, {}), "k1-fc_norm": (1, {"fc_norm": True})}


def write_export(engine: str, case: Case, target, folder: Path) -> None:
    """Write a case with the head's export, and states of every layer that the export captures."""
    config = case.head.config
    fit = export_head(engine, config, case.head.state_dict(), served(target), folder / "export", SPEC)
    own = dict(zip(config.layers, case.tensors["states"].split(config.width, dim=1), strict=True))
    generator = torch.Generator().manual_seed(1)
    slots = len(case.tensors["states"])
    read = [own.get(layer, torch.randn(slots, config.width, generator=generator)) for layer in fit.layers]
    write_case(folder, case._replace(tensors=case.tensors | {"states": torch.cat(read, dim=1)}))


def answered(oracle: str, engine: str, heads, tmp_path_factory, **variables: str) -> tuple[dict[str, Case], Path]:
    folder = tmp_path_factory.mktemp(engine)
    target = make_target(folder / "target", width=64, rope_parameters=LLAMA3)
    embeddings = target.anatomy.embedding.weight.detach()
    cases = {}
    for number, (name, (k, settings)) in enumerate(heads.items()):
        case = make_case(drawn_head(target, LAYERS[k], **settings), seed=number)
        cases[name] = case._replace(tensors=case.tensors | {"embeddings": embeddings})
        (folder / "cases" / name).mkdir(parents=True)
        write_export(engine, cases[name], target, folder / "cases" / name)
    assert folder_of(target).is_dir()
    run_oracle(oracle, folder / "cases", **variables)
    return cases, folder / "cases"


@pytest.fixture(scope="module")
def speculators(tmp_path_factory):
    return answered("speculators", "speculators", SPECULATORS, tmp_path_factory)


@pytest.fixture(scope="module")
def sglang(tmp_path_factory):
    return answered("specforge", "sglang", SGLANG, tmp_path_factory, TORCHDYNAMO_DISABLE="1")


@pytest.mark.parametrize("name", SPECULATORS)
def test_speculators_loads_its_layout_and_drafts_alike(speculators, name):
    cases, folder = speculators
    check_logits(cases[name], read_answer(folder / name), documents=2)


@pytest.mark.parametrize("name", SGLANG)
def test_specforge_loads_sglangs_layout_and_drafts_alike(sglang, name):
    cases, folder = sglang
    check_logits(cases[name], read_answer(folder / name), documents=1)
