"""Reading a config: every mistake is told by its key, with the nearest known one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from speclayers.config import FolderSource, Section, Study, TrainedSource, nearest
from speclayers.errors import UserError
from speclayers.layout import SPLITS, Layout


def _section_at(location: tuple[int | str, ...]) -> type[Section] | None:
    """Follow a validation error's location down the sections to the one it speaks of."""
    candidates: list[type[Section]] = [Study]
    for step in location:
        tagged = [section for section in candidates if step in _tags(section)]
        below = [
            s for c in candidates if step in c.model_fields for s in _sections_in(c.model_fields[str(step)].annotation)
        ]
        candidates = tagged or below or candidates  # neither: a list index or a name in a mapping
    return candidates[0] if len(candidates) == 1 else None


def _tags(section: type[Section]) -> set[Any]:
    fields = (section.model_fields[key] for key in ("kind", "source") if key in section.model_fields)
    return {tag for field in fields for tag in get_args(field.annotation) if isinstance(tag, str)}


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections_in(argument)]


class _LoaderWithoutRepeats(yaml.SafeLoader):
    """YAML, but a key that stands twice in one mapping is an error; plain YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                line = node.value[place][0].start_mark.line + 1
                raise UserError(f"line {line}: key '{key}' stands there twice")
        return super().construct_mapping(node, deep)


def refuse_repeated_keys(path: Path) -> None:
    """Check that no mapping of a YAML file has a key twice, such as two models of one name.

    Raises:
        UserError: One has; or the file cannot be read, or is no YAML.
    """
    try:
        yaml.load(path.read_text(encoding="utf-8"), _LoaderWithoutRepeats)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: is no valid YAML: {' '.join(str(error).split())}") from None


def refuse_missing_files(study: Study, layout: Layout) -> None:
    """Check that the models, prompts and questions that a study reads from files are there.

    Snakemake would not say so: with results of an earlier run it would go on with those, made from other files. A
    model's folder may go once the model is fetched.

    Raises:
        UserError: One is missing, or is no file.
    """
    named = {name: study.models[name].source for name in study.study.models}
    teachers = [source.teacher for source in named.values() if isinstance(source, TrainedSource)]
    for name, source in (named | {teacher: study.models[teacher].source for teacher in teachers}).items():
        if not isinstance(source, FolderSource) or Path(layout.manifest(name)).exists():
            continue
        if not (Path(source.path) / "config.json").is_file():
            raise UserError(f"models.{name}.source.path: {source.path} holds no config.json; expected a model's folder")
    sources = {f"corpus.{split}.prompts": getattr(study.corpus, split).prompts for split in SPLITS}
    for name, head in study.pretrained.items():
        if head.path is not None and not (Path(head.path) / "config.json").is_file():
            raise UserError(f"pretrained.{name}.path: {head.path} holds no config.json; expected a head's folder")
    sources["acceptance.questions"] = study.acceptance.questions
    for key, source in sources.items():
        path = getattr(source, "path", None)
        if path is not None and not Path(path).is_file():
            raise UserError(f"{key}.path: {path} is no file; expected a JSON-lines file")


def refuse_unwritable(*folders: Path) -> None:
    """Check that a run may write into its folders, or make them.

    Snakemake would tell so in a traceback, or by the first job that fails.

    Raises:
        UserError: It may not, as in another person's clone.
    """
    for folder in folders:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            raise UserError(f"{folder}/: you may not write into {there}; expected a folder of your own")


def parse_study(raw: Mapping[str, Any]) -> Study:
    """Check a config as read from YAML.

    Args:
        raw: The merged config: the default overlaid by a study file and by --config.

    Raises:
        UserError: One line that names each wrong key, what was found and what was expected.
    """
    try:
        return Study.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(_describe(problem) for problem in error.errors())
        raise UserError(f"config: {problems}") from None


def _describe(problem: Mapping[str, Any]) -> str:
    location = tuple(problem["loc"])
    where = ".".join(str(step) for step in location)
    if problem["type"] == "extra_forbidden":
        parent = _section_at(location[:-1])
        known = list(parent.model_fields) if parent else []
        return f"unknown key '{where}'{nearest(str(location[-1]), known)}"
    if problem["type"] == "value_error":
        message = str(problem["ctx"]["error"])
        return f"{where}: {message}" if where else message
    if location and location[-1] == "[key]":
        where = ".".join(str(step) for step in location[:-1])
        return f"{where}: not a usable name: lower-case letters, digits, '.', '_', '-'; no '/', no leading dot"
    found = problem.get("input")
    shown = f", found {found!r}" if isinstance(found, str | int | float | bool) else ""
    return f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}{shown}"


Options = TypeVar("Options", bound=Section)


def checked_options(where: str, kind: type[Options], options: Mapping[str, Any]) -> Options:
    """Check the options of a selector or drafter, whose file alone knows them.

    Args:
        where: Key of the config entry that they belong to.
        kind: Their model.
        options: As written in the config.

    Raises:
        UserError: A key is unknown, or a value does not fit.
    """
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([where, "options", *(str(step) for step in first["loc"])])
        if first["type"] == "extra_forbidden":
            known = list(kind.model_fields)
            hint = nearest(str(first["loc"][-1]), known)
            raise UserError(f"{key}: unknown option; known are {', '.join(known) or 'none'}{hint}") from None
        raise UserError(f"{key}: {first['msg']}, found {first['input']!r}") from None
