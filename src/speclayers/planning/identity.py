"""What every stage of every model depends on, chained: the fingerprints that the rules pass to their jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speclayers import specs
from speclayers.config import Section, Study, TrainedSource
from speclayers.files import read_json, write_json
from speclayers.fingerprint import (
    PACKAGE,
    STAGES,
    code_hash,
    code_parts,
    fingerprint,
    rival_files,
    rival_needs,
    selector_files,
    stage_code,
    stage_files,
)
from speclayers.layout import Layout
from speclayers.names import RivalName

SLICES = {
    "fetch_model": specs.fetch,
    "build_teacher": specs.teacher,
    "make_tiny_model": specs.tiny_model,
    "dump_activations": specs.dump,
    "accumulate_gram": specs.gram,
    "measure_geometry": specs.geometry,
    "sweep_filter": specs.sweep,
    "select_layers": specs.selection,
    "extract_features": specs.features,
    "train_draft": specs.train,
    "continue_draft": specs.continued,
    "screen_layers": specs.screen,
    "choose_questions": lambda study, model: specs.questions(study),
    "decode_baseline": specs.baseline,
    "measure_acceptance": specs.decode,
    "measure_speed": specs.speed,
}
"""A stage's slice of the config."""

RIVAL_PARTS = {"search_skips": specs.search_skips, "measure_rival": specs.rival, "time_rival": specs.timed_rival}
PARTS = {"build_corpus": specs.corpus, "train_medusa": specs.train_medusa, **RIVAL_PARTS}
"""The same of stages that have one for each split, or for each rival: it stands behind a dot."""

MAKERS = {"skipped": "search_skips", "weights": "train_medusa"}
"""Stages that make what a rival needs."""

SCRIPTS = {"build_teacher": "build_corpus"}
"""Scripts that are not named like their rule."""

Records = dict[str, Any]
"""What was known when a fingerprint was made: see `Identities.records`."""


@dataclass(frozen=True)
class Identities:
    """The slices and fingerprints of a study's stages.

    Args:
        study: Its config.
        scripts: Folder of the rules' scripts.
    """

    study: Study
    scripts: Path
    _specs: dict[tuple[str, str], str] = field(default_factory=dict, init=False, repr=False)
    _known: dict[tuple[str, str], str] = field(default_factory=dict, init=False, repr=False)

    def slice_of(self, stage: str, model: str) -> Section:
        """Return a stage's slice of the config.

        Args:
            stage: A rule; build_corpus carries its split behind a dot, a rival's stage the rival's label.
            model: The model; any where the stage is the whole study's.
        """
        name, _, part = stage.partition(".")
        found: Section = PARTS[name](self.study, model, part) if part else SLICES[name](self.study, model)
        return found

    def spec(self, stage: str, model: str) -> str:
        """Return the slice as canonical JSON."""
        key = stage, model
        if key not in self._specs:
            self._specs[key] = self.slice_of(stage, model).canonical()
        return self._specs[key]

    def identity(self, stage: str, model: str) -> str:
        """Return the fingerprint of a stage's result for a model, everything before it included."""
        key = stage, model
        if key not in self._known:
            before = [self.identity(*other) for other in self.upstream(stage, model)]
            files = [code_hash(path) for path in self._plugins(stage)]
            self._known[key] = fingerprint(self.slice_of(stage, model), self.code(stage), [*before, *files])
        return self._known[key]

    def code(self, stage: str) -> str:
        """Return the hash of a stage's code."""
        name = stage.partition(".")[0]
        return stage_code(name, self._script(name))

    def upstream(self, stage: str, model: str) -> list[tuple[str, str]]:
        """Return the stages, with their models, whose results a stage's is computed from."""
        name, _, part = stage.partition(".")
        before = [(self._making(model) if other == "target" else other, model) for other in STAGES[name].upstream]
        source = self.study.models[model].source if model in self.study.models else None
        if name == "build_teacher" and isinstance(source, TrainedSource):
            before.append((self._making(source.teacher), source.teacher))
        if name == "measure_geometry" and self.study.geometry.shards > 1:
            before.append(("accumulate_gram", model))
        if name in ("measure_rival", "time_rival"):
            needs = rival_needs(RivalName.parse(part).kind)
            before += [(f"{maker}.{part}", model) for need, maker in MAKERS.items() if need in needs]
        return before

    def _making(self, model: str) -> str:
        return "make_tiny_model" if isinstance(self.study.models[model].source, TrainedSource) else "fetch_model"

    def _script(self, name: str) -> Path:
        return self.scripts / f"{SCRIPTS.get(name, name)}.py"

    def _plugins(self, stage: str) -> list[Path]:
        name, _, part = stage.partition(".")
        if name in RIVAL_PARTS:
            return rival_files(RivalName.parse(part).kind)
        if name != "select_layers":
            return []
        return [path for chosen in self.study.selection.selectors for path in selector_files(chosen.name)]

    # ------------------------------------------------------------ what a later run can compare with

    def records(self) -> Records:
        """Return what the fingerprints of this study's stages were made of, to tell later what changed.

        Returns:
            `results`: by fingerprint, a result's slice, code hash, upstream fingerprints and plugin files;
            `code`: by code hash, a stage's files; `files`: by hash, the hash of each function in a file.
        """
        records: Records = {"results": {}, "code": {}, "files": {}}
        for stage in STAGES:
            self._record_code(records, stage)
        for model in self.study.study.models:
            stages = [stage for stage in SLICES if self._has(stage, model)]
            rivals = [rival for rival in self.study.rivals if rival.models is None or model in rival.models]
            stages += [
                f"{stage}.{rival.runs()[0].label}" for rival in rivals for stage in ("measure_rival", "time_rival")
            ]
            for stage in (*stages, "build_corpus.calibration", "build_corpus.training"):
                self._record(records, stage, model)
        return records

    def _has(self, stage: str, model: str) -> bool:
        if stage == "screen_layers":
            return self.study.screen is not None
        if stage == "continue_draft":
            return any(head.model == model for head in self.study.pretrained.values())
        if stage in ("fetch_model", "make_tiny_model", "build_teacher"):
            return (stage == "fetch_model") == (self._making(model) == "fetch_model")
        return True

    def _record(self, records: Records, stage: str, model: str) -> None:
        identity = self.identity(stage, model)
        if identity in records["results"]:
            return
        before = self.upstream(stage, model)
        records["results"][identity] = {
            "stage": stage,
            "model": model,
            "spec": self.slice_of(stage, model).model_dump(mode="json"),
            "code": self.code(stage),
            "upstream": [self.identity(*other) for other in before],
            "plugins": self._record_files(records, self._plugins(stage)),
        }
        for other in before:
            self._record(records, *other)

    def _record_code(self, records: Records, stage: str) -> None:
        files = [self._script(stage), *stage_files(stage)]
        records["code"][self.code(stage)] = self._record_files(records, files)

    def _record_files(self, records: Records, paths: list[Path]) -> dict[str, str]:
        found = {}
        for path in paths:
            name = (
                path.relative_to(PACKAGE.parent).as_posix() if path.is_relative_to(PACKAGE) else f"scripts/{path.name}"
            )
            found[name] = code_hash(path)
            records["files"][found[name]] = code_parts(path)
        return found


def add_records(path: Path, records: Records) -> None:
    """Add records to a file; what earlier runs wrote there stays.

    Raises:
        UserError: The file is broken or cannot be written.
    """
    known = read_json(path) if path.exists() else {}
    merged = {part: known.get(part, {}) | added for part, added in records.items()}
    if merged != known:
        write_json(path, merged)


def read_records(results: Path) -> Records:
    """Return the records of all studies that lie under a folder: they share models.

    Raises:
        UserError: One is broken.
    """
    united: Records = {"results": {}, "code": {}, "files": {}}
    for path in sorted(results.glob(f"*/{Path(Layout('').fingerprints).name}")):
        found = read_json(path)
        united = {part: known | found[part] for part, known in united.items()}
    return united
