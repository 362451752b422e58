"""The EAGLE-3 drafter: one decoder layer that reads a few of the target's layers (arXiv 2503.01840)."""

from __future__ import annotations

import torch
from torch import Tensor

from speclayers.drafting.draft_cache import DraftCache
from speclayers.drafting.drafter import Proposal, Verified
from speclayers.drafting.head import Eagle3Head
from speclayers.drafting.tree import Beams, TreeShape, build_tree
from speclayers.errors import UserError
from speclayers.targets.cache import PreallocatedCache
from speclayers.targets.target import Target


class Eagle3Drafter:
    """Drafts dynamic trees with an EAGLE-3 head.

    Slot p of the draft cache holds the target's fused states at p and the embedding of token p + 1. Slots of
    verified tokens always come from the target's states; what the head feeds back to itself while drafting is
    cropped off again.

    Args:
        target: The model that it drafts for.
        head: Its trained head.
        shape: How large its trees grow.
        name: Name in messages.
    """

    def __init__(self, target: Target, head: Eagle3Head, shape: TreeShape, name: str = "eagle3") -> None:
        """Bind a head to its target."""
        self.name = name
        self.layers = tuple(head.config.layers)
        self.nodes = self.rows = shape.nodes
        self.depth = shape.depth
        self._target = target
        self._head = head
        self._shape = shape
        self._cache: DraftCache | None = None
        self._new: tuple[Tensor, Tensor] | None = None
        self._root = -1

    def start(self, cache: PreallocatedCache) -> None:
        """Forget the last turn; make room for as many tokens as the target's cache holds."""
        drafted = self._shape.top_k * (self._shape.depth - 1)
        self._cache = self._head.new_cache(cache.capacity + drafted)
        self._new = None

    def observe(self, verified: Verified) -> None:
        """Fuse the states of newly verified tokens; `propose` runs the head over them."""
        device = self._head.fc.weight.device
        states = torch.cat([verified.states[layer].to(device) for layer in self.layers], dim=-1)
        following = torch.cat((verified.tokens[1:], torch.tensor([verified.root])))
        self._new = (self._head.fuse(states), self._embed(following))
        self._root = verified.root

    @torch.inference_mode()
    def propose(self) -> Proposal:
        """Draft a tree below the latest root.

        Raises:
            UserError: The head's logits are not finite.
        """
        if self._cache is None or self._new is None:
            raise RuntimeError("propose was called before start and observe")
        cache, (fused, embeddings), self._new = self._cache, self._new, None
        positions = torch.arange(cache.length, cache.length + len(fused), device=fused.device)
        output = self._head(fused[None], embeddings[None], positions[None], None, cache)[0, -1:]
        growth = _Growth(self, cache, output)
        tree = build_tree(self._log_probabilities(output)[0], growth.expand, self._shape)
        cache.crop_to(growth.verified)
        root = torch.tensor([self._root])
        tokens = torch.cat((root, self._head.target_ids(tree.tokens).cpu()))
        parents = torch.cat((torch.tensor([-1]), tree.parents.cpu()))
        return Proposal(tokens, parents, growth.forwards, growth.forwards)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._target.embed(tokens.to(self._target.device)).to(self._head.fc.weight)

    def _log_probabilities(self, output: Tensor) -> Tensor:
        log_probabilities = self._head.logits(output).float().log_softmax(-1)
        if bool(log_probabilities.isnan().any()):
            raise UserError(f"{self.name}: the draft head's logits are not finite; train it again in float32")
        return log_probabilities


class _Growth:
    """Runs the head over one level of a growing tree after the other.

    Args:
        drafter: Whose head and embeddings are used.
        cache: Holds the verified slots, the root's last.
        output: The head's output (1, width) at the root's slot.
    """

    def __init__(self, drafter: Eagle3Drafter, cache: DraftCache, output: Tensor) -> None:
        self.verified = cache.length
        self.forwards = 1  # the pass over the verified slots, which also gave level 1
        self._drafter = drafter
        self._cache = cache
        self._outputs = output
        self._visible = torch.zeros(1, 0, dtype=torch.bool, device=output.device)  # (beams, drafted slots)

    def expand(self, beams: Beams) -> Tensor:
        """Return log-probabilities (beams, draft_vocabulary) of what follows each beam."""
        drafter, count = self._drafter, len(beams.tokens)
        itself = torch.eye(count, dtype=torch.bool, device=beams.tokens.device)
        self._visible = torch.cat((self._visible[beams.parents], itself), dim=1)
        embeddings = drafter._embed(drafter._head.target_ids(beams.tokens))
        # The root's slot is the last verified one, so a node at depth d has its slot d places behind it.
        position = self.verified - 1 + self.forwards
        positions = torch.full((1, count), position, device=beams.tokens.device)
        # What is fed back is the head's own output, not fused again.
        hidden = self._outputs[beams.parents][None]
        self._outputs = drafter._head(hidden, embeddings[None], positions, self._mask(hidden), self._cache)[0]
        self.forwards += 1
        return drafter._log_probabilities(self._outputs)

    def _mask(self, like: Tensor) -> Tensor:
        """Return the additive mask (1, 1, beams, slots): all verified slots, then ancestors and the beam itself."""
        count, drafted = self._visible.shape
        mask = like.new_zeros(1, 1, count, self.verified + drafted)
        mask[..., self.verified :].masked_fill_(~self._visible, float("-inf"))
        return mask
