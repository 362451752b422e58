"""The model card of an exported head: what it is, what it was trained on, how well it drafts, how it is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from speclayers.drafting.head import HeadConfig
from speclayers.export.engine import ServedTarget, engine_format
from speclayers.export.layer_ids import CONVENTION, ENGINES, layer_ids
from speclayers.export.preflight import PADDED, Fit


class Measured(NamedTuple):
    """Acceptance of the head's layer set at one setting.

    Args:
        temperature: Sampling temperature.
        nodes: Nodes of the draft tree, the root counted.
        tau: Mean accepted tokens per verification, the bonus token counted, mean over questions.
        low: Lower limit of its interval.
        high: Upper limit.
        confidence: Level of the interval.
        questions: Questions measured.
        seeds: Training seeds pooled.
    """

    temperature: float
    nodes: int
    tau: float
    low: float
    high: float
    confidence: float
    questions: int
    seeds: int


def card(
    head: HeadConfig, fit: Fit, target: ServedTarget, dtype: str, command: str, measured: Sequence[Measured]
) -> str:
    """Return README.md of an exported folder.

    Args:
        head: The head as it was trained, without padding.
        fit: How the engine serves it.
        target: The model that it drafts for.
        dtype: Precision of the weights.
        command: What serves the folder.
        measured: What was measured of it.
    """
    about, engine = engine_format(fit.engine), ENGINES[fit.engine]
    ids = layer_ids(fit.engine, fit.layers, target.layers)
    sections = [
        _front(target),
        f"# EAGLE-3 draft head for {target.name}",
        f"For {engine.name}, read from {about.read}. It drafts tokens that {target.name} verifies; alone it is no"
        " language model.",
        "## Serving\n\n```sh\n" + command + "\n```",
        *(["\n".join(f"- {note}" for note in fit.notes)] if fit.notes else []),
        "## Layers\n\n"
        + f"It reads layers {_listed(head.layers)} of {target.layers}. Layer {CONVENTION}.\n\n"
        + f"As ids of {engine.name} ({engine.key}): {_listed(ids)}; {engine.convention}."
        + _padding(head, fit),
        "## Training\n\n" + _training(head),
        "## Acceptance\n\n" + _acceptance(measured),
        f"## Files\n\nWeights are {dtype}, safetensors only. Rotary embedding: {_rope(head)}; positions up to"
        f" {head.max_positions}.",
        "## Licences\n\n"
        + f"Weights of the target: {target.licence or 'not known'}. The head was trained on the target's own answers"
        + (" and started from its weights" if head.initialised_from_target else "")
        + "; their terms, and those of the prompts, apply to it.",
    ]
    return "\n\n".join(sections) + "\n"


def _front(target: ServedTarget) -> str:
    lines = ["---", f"base_model: {target.name}", "library_name: transformers", "tags: [eagle3, speculative-decoding]"]
    return "\n".join([*lines, *([f"license: {target.licence.lower()}"] if target.licence else []), "---"])


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _padding(head: HeadConfig, fit: Fit) -> str:
    if fit.verdict != PADDED:
        return ""
    spare = [layer for layer in fit.layers if layer not in head.layers]
    return (
        f"\n\nThe engine takes no fewer than {len(fit.layers)} layers, so it also captures {_listed(spare)}; the head"
        " multiplies these with zero, which changes no output."
    )


def _training(head: HeadConfig) -> str:
    if not head.fingerprint:
        return "Not trained here; taken over from elsewhere."
    start = f"from head {head.started_from}, {head.percent} % of a training" if head.started_from else "from scratch"
    known = "" if head.coverage is None else f" They cover {100 * head.coverage:.1f} % of the response tokens."
    return (
        f"Trained by training-time test on the answers of {head.target} to the study's training prompts, {start},"
        f" seed {head.seed}. Draft vocabulary: {head.draft_vocabulary} of {head.vocabulary} tokens.{known}\n\n"
        f"- target: `{head.target_hash}`\n- chat template: `{head.template_hash}`\n- training: `{head.fingerprint}`"
    )


def _acceptance(measured: Sequence[Measured]) -> str:
    if not measured:
        return "Not measured when this folder was written."
    rows = [
        "| temperature | nodes | tau | interval | questions | training seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {m.temperature:g} | {m.nodes} | {m.tau:.3f} | [{m.low:.3f}, {m.high:.3f}] | {m.questions} | {m.seeds} |"
        for m in measured
    ]
    return (
        "Mean accepted tokens per verification of this layer set (tau), the token that the target adds counted, mean"
        f" over questions, with {100 * measured[0].confidence:g} % intervals; dynamic trees of so many nodes, the root"
        " counted. A chain, as some engines draft, accepts fewer.\n\n" + "\n".join(rows)
    )


def _rope(head: HeadConfig) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(head.rope_parameters.items()))
