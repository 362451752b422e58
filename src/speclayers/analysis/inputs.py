"""What the scripts of the analysis are given: repeated options `NAME=PATH`, taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from speclayers.analysis.summary import ModelResults, Run
from speclayers.errors import UserError
from speclayers.names import ShapeName
from speclayers.targets.manifest import MANIFEST, Manifest, read_manifest


def named_paths(option: str, values: Sequence[str]) -> dict[str, Path]:
    """Take `NAME=PATH` apart.

    Args:
        option: Name of the option, for messages.
        values: As given, in order.

    Raises:
        UserError: A value has no name, or a name comes twice.
    """
    found: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise UserError(f"{option}: found '{value}', expected NAME=PATH")
        if name in found:
            raise UserError(f"{option}: '{name}' is given twice")
        found[name] = Path(path)
    return found


def runs(option: str, values: Sequence[str]) -> dict[Run, Path]:
    """Take `HEAD:T:NODES=PATH` apart.

    Raises:
        UserError: A value has another form.
    """
    found = {}
    for key, path in named_paths(option, values).items():
        drafter, *setting = key.rsplit(":", 2)
        try:
            temperature, shape = float(setting[0]), ShapeName.parse(setting[1])
        except (ValueError, IndexError, UserError):
            raise UserError(f"{option}: found '{key}=…', expected HEAD:TEMPERATURE:NODES=PATH") from None
        found[Run(drafter, temperature, *shape)] = path
    return found


def baselines(option: str, values: Sequence[str]) -> dict[float, Path]:
    """Take `T=PATH` apart.

    Raises:
        UserError: A temperature is no number.
    """
    try:
        return {float(name): path for name, path in named_paths(option, values).items()}
    except ValueError as error:
        raise UserError(f"{option}: {error}, expected TEMPERATURE=PATH") from None


def manifest(option: str, path: Path) -> Manifest:
    """Read a model's manifest.

    Raises:
        UserError: The path is another file, or the manifest is missing or broken.
    """
    if path.name != MANIFEST:
        raise UserError(f"{option}: found {path}, expected a model's {MANIFEST}")
    return read_manifest(path.parent)


def manifests(option: str, values: Sequence[str]) -> dict[str, Manifest]:
    """Read the manifests of `MODEL=PATH`.

    Raises:
        UserError: A value has another form, or a manifest is missing or broken.
    """
    return {model: manifest(option, path) for model, path in named_paths(option, values).items()}


def layer_results(
    targets: Sequence[str], geometry: Sequence[str], selections: Sequence[str], recommendations: Sequence[str]
) -> tuple[dict[str, ModelResults], dict[str, Path]]:
    """Take apart what the page of the layers is given: every option once for each model.

    Returns:
        Results and recommendation of each model.

    Raises:
        UserError: An option names other models than --target does, or a manifest is missing or broken.
    """
    found = manifests("--target", targets)
    given = {
        option: named_paths(option, values)
        for option, values in (
            ("--geometry", geometry),
            ("--selections", selections),
            ("--recommendation", recommendations),
        )
    }
    for option, paths in given.items():
        if apart := sorted(set(paths) ^ set(found)):
            raise UserError(f"{option} and --target: name different models: {', '.join(apart)}")
    results = {
        model: ModelResults(model, "float32", target, given["--geometry"][model], given["--selections"][model])
        for model, target in found.items()
    }
    return results, {model: given["--recommendation"][model] for model in found}
