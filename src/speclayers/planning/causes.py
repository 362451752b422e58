"""Why a job runs again, in words: which key of the config, which function of which file."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speclayers.names import RivalName
from speclayers.planning.identity import Records

_ABSENT = object()
_SHOWN = 60  # characters of a value

_SECTIONS = {
    "dump_activations": "geometry",
    "accumulate_gram": "geometry",
    "measure_geometry": "geometry",
    "sweep_filter": "geometry",
    "choose_questions": "acceptance",
    "decode_baseline": "acceptance",
    "measure_acceptance": "acceptance",
    "measure_rival": "acceptance",
    "measure_speed": "speed",
    "time_rival": "speed",
}
"""Section of the config that the keys of a stage's slice stand in, where they do not name it."""


@dataclass(frozen=True)
class Planned:
    """A job that would run, as the workflow sees it.

    Args:
        rule: Its rule.
        wildcards: The rule's wildcards.
        missing: Outputs that are missing.
        incomplete: Outputs that were being written when a run was killed.
        newer: Inputs that were changed by hand.
        made_again: Inputs that other jobs of the same run make again, with the rule that makes each.
        inputs_before: Inputs of the last run, where they are others now.
        inputs_now: Inputs now.
        params_before: Params of the last run that are no more, as Python prints them.
        params_now: Params that are new.
        command_changed: Whether the text of the rule's command changed.
        environment_changed: Whether its conda environment changed.
        forced: Whether it was asked for by hand.
    """

    rule: str
    wildcards: Mapping[str, str]
    missing: Sequence[str] = ()
    incomplete: Sequence[str] = ()
    newer: Sequence[str] = ()
    made_again: Mapping[str, str] | None = None
    inputs_before: Sequence[str] = ()
    inputs_now: Sequence[str] = ()
    params_before: Sequence[str] = ()
    params_now: Sequence[str] = ()
    command_changed: bool = False
    environment_changed: bool = False
    forced: bool = False

    def __str__(self) -> str:
        """Return rule and wildcards as they stand in messages."""
        return " ".join((self.rule, *self.wildcards.values()))


def causes(job: Planned, before: Records, now: Records) -> list[str]:
    """Return why a job runs, its own causes first; only where it has none of its own, what it follows from.

    Args:
        job: The job.
        before: What the fingerprints of earlier runs were made of.
        now: What those of the present code and config are made of.
    """
    own = list(dict.fromkeys(_own_causes(job, before, now)))
    if own or not job.made_again:
        return own
    return [f"comes after {rule}, which runs again" for rule in dict.fromkeys(job.made_again.values())]


def _own_causes(job: Planned, before: Records, now: Records) -> Iterator[str]:
    if job.forced:
        yield "asked for by hand"
    if job.missing:
        yield f"{_listed(job.missing)}: never made, or deleted"
    if job.incomplete:
        yield f"{_listed(job.incomplete)}: a run was killed while it was written"
    if job.newer:
        yield f"{_listed(job.newer)}: changed by hand"
    yield from _changed_params(job, before, now)
    if dropped := sorted(set(job.inputs_before) - set(job.inputs_now)):
        yield f"no longer reads {_listed(dropped)}"
    if added := sorted(set(job.inputs_now) - set(job.inputs_before)) if job.inputs_before else []:
        yield f"now reads {_listed(added)}"
    if job.command_changed:
        yield f"the text of the command of rule {job.rule} changed"
    if job.environment_changed:
        yield "its conda environment changed"


def _listed(paths: Sequence[str]) -> str:
    first, *others = sorted(paths)
    return f"{first} and {len(others)} more" if others else first


# ---------------------------------------------------------------- params


def _changed_params(job: Planned, before: Records, now: Records) -> Iterator[str]:
    """Explain params that changed: fingerprints by what they were made of, slices by their keys, others as they are."""
    gone, new = ([_value(text) for text in texts] for texts in (job.params_before, job.params_now))
    if any(map(_is_hash, new)):
        pairs = _pairs(gone, new, before, now)
        for old, found in pairs:
            compare = changed_results if found in now["results"] else _changed_code
            yield from compare(old, found, before, now)
        if not pairs:
            yield "its fingerprint changed; what it was made of is not recorded"
    slices = [[part for value in values if (part := _as_json(value)) is not None] for values in (gone, new)]
    for old_slice, new_slice in zip(slices[0], slices[1], strict=False):
        yield from changed_keys(_stage_of(job), job.wildcards.get("model", ""), old_slice, new_slice)
    rest = [[value for value in values if _as_json(value) is None and not _is_hash(value)] for values in (gone, new)]
    for old, found in zip(*rest, strict=False):
        yield f"{_shown(old)} → {_shown(found)}"


def _stage_of(job: Planned) -> str:
    if job.rule == "build_corpus":
        return f"{job.rule}.{job.wildcards['split']}"
    return f"{job.rule}.{RivalName.parse(rival).label}" if (rival := job.wildcards.get("rival")) else job.rule


def _pairs(gone: Sequence[str], new: Sequence[str], before: Records, now: Records) -> list[tuple[str, str]]:
    """Return fingerprints, before and now, of the same stage and model; or hashes of a stage's code."""
    results = [
        (old, found)
        for found in new
        for old in gone
        if found in now["results"]
        and old in before["results"]
        and all(now["results"][found][key] == before["results"][old][key] for key in ("stage", "model"))
    ]
    code = [(old, found) for found in new if found in now["code"] for old in gone if old in before["code"]]
    return results or code


def _value(text: str) -> str:
    try:
        return str(literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _is_hash(value: str) -> bool:
    return len(value) == 16 and set(value) <= set("0123456789abcdef")


def _as_json(value: str) -> dict[str, Any] | None:
    if not value.startswith("{"):
        return None
    try:
        found: dict[str, Any] = json.loads(value)
    except ValueError:
        return None
    return found


# ---------------------------------------------------------------- results


def changed_results(old: str, new: str, before: Records, now: Records) -> Iterator[str]:
    """Yield what differs between two results, whatever lies before them included.

    Args:
        old: Fingerprint of a result of an earlier run.
        new: Fingerprint of the same stage's result now.
        before: Records of earlier runs.
        now: Records of now.
    """
    if old == new:
        return
    was, found = before["results"].get(old), now["results"][new]
    if was is None:
        yield f"{found['stage']}: what its last run was made of is not recorded, so the cause is not known"
        return
    stage, model = found["stage"], found["model"]
    yield from changed_keys(stage, model, was["spec"], found["spec"])
    yield from _changed_code(was["code"], found["code"], before, now)
    yield from _changed_files(was["plugins"], found["plugins"], before, now)
    for earlier, later in zip(was["upstream"], found["upstream"], strict=False):
        yield from changed_results(earlier, later, before, now)
    if len(was["upstream"]) != len(found["upstream"]):
        yield f"{stage} is computed from other stages"


def _changed_code(old: str, new: str, before: Records, now: Records) -> Iterator[str]:
    if old == new:
        return
    if old not in before["code"]:
        yield "the code changed; what it was is not recorded"
        return
    was, found = before["code"][old], now["code"][new]
    yield from _changed_files(was, found, before, now) if was != found else ["RESULT_VERSION was raised"]


def _changed_files(was: Mapping[str, str], found: Mapping[str, str], before: Records, now: Records) -> Iterator[str]:
    for name in sorted(was.keys() | found.keys()):
        if name not in was or name not in found:
            yield f"{name}: {'added to' if name in found else 'taken from'} what the stage is made of"
        elif was[name] != found[name]:
            yield f"{name}: {_changed_parts(before['files'][was[name]], now['files'][found[name]])}"


def _changed_parts(was: Mapping[str, str], found: Mapping[str, str]) -> str:
    changed = [
        f"{name}() {'is new' if name not in was else 'is gone' if name not in found else 'changed'}"
        if name
        else "statements outside functions changed"
        for name in sorted(was.keys() | found.keys())
        if was.get(name) != found.get(name)
    ]
    return ", ".join(changed) or "changed"


# ---------------------------------------------------------------- keys of the config


def changed_keys(stage: str, model: str, was: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield each key of the config that differs between two slices, with both values.

    Args:
        stage: Whose slices they are; behind a dot build_corpus carries its split, a rival's stage the rival's label.
        model: The model that they are for.
        was: The slice of an earlier run.
        found: The slice of now.
    """
    for path, old, new in _differences(was, found, ()):
        yield f"{_config_key(stage, model, path)}: {_shown(old)} → {_shown(new)}"


def _differences(was: Any, found: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(was, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys((*was, *found)):
            yield from _differences(was.get(key, _ABSENT), found.get(key, _ABSENT), (*path, key))
    elif was != found:
        yield path, was, found


def _config_key(stage: str, model: str, path: Sequence[str]) -> str:
    name, _, part = stage.partition(".")
    keys = list(path)
    while keys[0] in ("timed", "decode"):
        keys = keys[1:]
    if keys[0] in ("runtime", "source", "trust_remote_code"):
        return ".".join(("models", model, *(keys[1:] if keys[0] == "runtime" else keys)))
    if keys[0] == "split":
        return ".".join(("corpus", part, *keys[1:]))
    if keys[0] == "rival":
        return ".".join(("rivals", part, *keys[1:]))
    if keys[0] == "batch_size":
        return "corpus.batch_size"
    section = _SECTIONS.get(name)
    if section == "speed" and keys[-1] not in ("per_category", "max_new_tokens"):
        section = "acceptance"
    return ".".join((section, *keys) if section else keys)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def in_words(jobs: Iterable[Planned], before: Records, now: Records) -> Iterator[str]:
    """Yield a line for each job, and under it a line for each cause."""
    for job in jobs:
        yield str(job)
        yield from (f"    {cause}" for cause in causes(job, before, now))
