"""Whether an engine serves a head, told before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from speclayers.drafting.head import HeadConfig
from speclayers.errors import UserError
from speclayers.export.engine import FLAGS, ServedTarget, engine_format
from speclayers.export.layer_ids import ENGINES, layer_ids, served_layers

LOADS, PADDED, REFUSED = "loads", "loads padded", "refused"


class Fit(NamedTuple):
    """What an engine makes of a head.

    Args:
        engine: A key of ENGINES.
        verdict: LOADS, PADDED or REFUSED.
        layers: Layers that it captures, padding included; none where it refuses.
        reasons: Why it refuses.
        notes: What must be done besides, so that it is served right.
        since: Engine version from which on, as far as its code was read.
    """

    engine: str
    verdict: str
    layers: tuple[int, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    since: str

    def text(self) -> str:
        """Return one line a fact: the verdict with the layers, then reasons and notes."""
        where = ENGINES[self.engine].name
        shown = f", captures layers {list(self.layers)}" if self.layers else ""
        lines = [f"{self.engine}: {self.verdict}{shown} ({where}; from {self.since} on)"]
        lines += [f"  because {reason}" for reason in self.reasons]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def fit(engine: str, head: HeadConfig, target: ServedTarget) -> Fit:
    """Say whether an engine serves a head, as it is or padded.

    Args:
        engine: A key of ENGINES.
        head: The head's config.
        target: The model that it drafts for.

    Raises:
        UserError: There is no engine of this name.
    """
    about = engine_format(engine)
    reasons = [
        *_layer_reasons(engine, head, target),
        *(f"{flag}: it has no such norm" for flag in FLAGS if getattr(head, flag) and flag not in about.flags),
        *about.limits(head, target),
    ]
    if target.architecture not in about.architectures:
        reasons.append(f"it captures no states of {target.architecture}")
    if reasons:
        return Fit(engine, REFUSED, (), tuple(reasons), (), about.since)
    layers = served_layers(engine, head.layers, target.layers)
    served = head.model_copy(update={"layers": layers})
    verdict = LOADS if layers == head.layers else PADDED
    return Fit(engine, verdict, layers, (), tuple(about.notes(served, target)), about.since)


def _layer_reasons(engine: str, head: HeadConfig, target: ServedTarget) -> Iterable[str]:
    try:
        layer_ids(engine, head.layers, target.layers)
        layers = served_layers(engine, head.layers, target.layers)
    except UserError as error:
        yield str(error)
        return
    if layers != head.layers and head.norm_before_fc:
        yield "norm_before_fc: padding to three layers would change the norm over all of them"


def report(model: str, head: str, reason: str, fits: Iterable[Fit]) -> dict[str, Any]:
    """Return the contents of recommended.json: the head to export, why it, and what each engine makes of it."""
    return {
        "model": model,
        "head": head,
        "reason": reason,
        "engines": {found.engine: found._asdict() for found in fits},
    }


def report_text(found: dict[str, Any]) -> str:
    """Return recommended.json in words."""
    fits = [Fit(**facts) for facts in found["engines"].values()]
    return "\n".join([f"{found['model']}: {found['head']}; {found['reason']}", *(fit.text() for fit in fits)]) + "\n"


def preflight(engines: Iterable[str], head: HeadConfig, target: ServedTarget) -> list[Fit]:
    """Say of each engine whether it serves a head."""
    return [fit(engine, head, target) for engine in engines]
