"""Medusa (arXiv 2401.10774): heads on the target's last state, one for each token ahead, and a sparse tree of them."""

from __future__ import annotations

from speclayers.config import RivalConfig, Section
from speclayers.drafting.medusa import MedusaDrafter
from speclayers.drafting.medusa_heads import RANKS, load_medusa
from speclayers.drafting.rival import Given, Rival
from speclayers.errors import UserError

NEEDS = ("weights",)
STARTS_ANEW = True


class Options(Section):
    """None: `draft_length` is the number of heads, `tree_nodes` the size of the tree, `training` the rest."""


def build(given: Given, options: Options) -> MedusaDrafter:
    """Return the drafter with the heads that the workflow trained.

    Raises:
        UserError: They are broken, of another target, or not as many as asked for.
    """
    weights = given.files["weights"]
    heads = load_medusa(weights.parent, given.target)
    if heads.config.heads != given.draft_length:
        raise UserError(
            f"{weights}: holds {heads.config.heads} heads; {given.key}.draft_length asks for {given.draft_length}, "
            "train them again"
        )
    return MedusaDrafter(given.target, heads, given.nodes, str(given.name))


def nodes(config: RivalConfig) -> int:
    """Return the nodes of the largest tree of its heads' candidates, or as many as asked for where there are more."""
    largest = sum(int(RANKS**depth) for depth in range(config.draft_length + 1))
    return min(config.nodes, largest)


RIVAL = Rival(build, Options, seeded=True, nodes=nodes)
