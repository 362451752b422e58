"""Which public packages give the linear CKA of this project, to how many digits.

ckatorch comes with the development extra. The others are measured where they are installed:
pip install --no-deps torch-cka==0.21 simtorch==0.2.1 (both also need matplotlib).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from ckatorch.core import cka_base, cka_batch
from figures import arguments, report

from speclayers.geometry.gram import Similarity, gram_sums, similarity
from speclayers.geometry.rows import RowStore, open_rows

PAIRS = 12
Measure = Callable[[torch.Tensor, torch.Tensor], float]


def states(tokens: int, width: int) -> np.ndarray:
    """Return pairs of layers that share a part, (2 · PAIRS, tokens, width)."""
    generator = np.random.default_rng(0)
    common = generator.standard_normal((PAIRS, 1, tokens, width))
    mixed = common * np.linspace(0, 2, PAIRS)[:, None, None, None]
    return (mixed + generator.standard_normal((PAIRS, 2, tokens, width)) + 1).reshape(2 * PAIRS, tokens, width)


def ours(layers: np.ndarray) -> Similarity:
    """Return this project's CKA of all pairs."""
    block = np.repeat(np.arange(4), layers.shape[1] // 4)
    return similarity(gram_sums(open_rows(RowStore(layers), np.arange(layers.shape[1]), block, "centre"), 4))


def gram(rows: torch.Tensor) -> torch.Tensor:
    """Return the linear Gram matrix."""
    return rows @ rows.T


def without_diagonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix with zeros on its diagonal, as HSIC₁ needs it."""
    return matrix - torch.diag(torch.diagonal(matrix))


def of_torch_cka(package: ModuleType) -> Measure:
    """Return CKA by torch-cka's HSIC, its Gram diagonals zeroed by the caller."""
    plain = SimpleNamespace(device="cpu")

    def measure(x: torch.Tensor, y: torch.Tensor) -> float:
        k, other = (without_diagonal(gram((v - v.mean(0)).float())) for v in (x, y))
        hsic = package.CKA._HSIC
        return float(hsic(plain, k, other) / np.sqrt(hsic(plain, k, k) * hsic(plain, other, other)))

    return measure


def of_simtorch(package: ModuleType) -> Measure:
    """Return simtorch's linear CKA of one batch."""
    plain = package.CKA.__new__(package.CKA)
    plain.device = "cpu"
    return lambda x, y: float(plain.linear_CKA(gram(x.float()), gram(y.float())))


def measures() -> dict[tuple[str, str], Measure]:
    """Return what is measured, by package with its function, and estimator."""
    found: dict[tuple[str, str], Measure] = {
        ("ckatorch cka_base fro_norm", "biased"): lambda x, y: float(cka_base(x, y)),
        ("ckatorch cka_base fro_norm unbiased", "debiased"): lambda x, y: float(cka_base(x, y, unbiased=True)),
        ("ckatorch cka_base hsic unbiased", "debiased"): lambda x, y: float(
            cka_base(x, y, unbiased=True, method="hsic")
        ),
        ("ckatorch cka_batch", "debiased"): lambda x, y: float(cka_batch((x - x.mean(0))[None], (y - y.mean(0))[None])),
    }
    for name, module, estimator, build in (
        ("torch-cka _HSIC, diagonals zeroed", "torch_cka.cka", "debiased", of_torch_cka),
        ("simtorch linear_CKA", "simtorch.similarity.cka", "biased", of_simtorch),
    ):
        try:
            found[name, estimator] = build(importlib.import_module(module))
        except ImportError as error:
            print(f"{name}: not measured ({error})", file=sys.stderr)
    return found


def main() -> None:
    """Print, for each package, in how many decimals it agrees over all pairs."""
    options = arguments(__doc__)
    layers = states(128 if options.quick else 512, 64)
    own = ours(layers)
    tensors = [torch.from_numpy(layer) for layer in layers]
    for (name, estimator), measure in measures().items():
        places = [(2 * pair, 2 * pair + 1) for pair in range(PAIRS)]
        theirs = [measure(tensors[a], tensors[b]) for a, b in places]
        gap = np.abs(np.subtract([getattr(own, estimator)[place] for place in places], theirs)).max()
        report(f"{estimator} CKA, equal digits", float(-np.log10(max(gap, 1e-16))), "digits", name, 4)


if __name__ == "__main__":
    main()
