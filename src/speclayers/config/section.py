"""What every section of the config is built from."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""Names become folder names and wildcards: lower case, no slash, no leading dot."""


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _without_repeats(values: list[Any]) -> list[Any]:
    repeated = [value for place, value in enumerate(values) if value in values[:place]]
    if repeated:
        raise ValueError(f"{repeated[0]} stands there twice")
    return values


NoRepeats = AfterValidator(_without_repeats)
FilePath = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
"""A path on this machine; ~ is the home folder."""

Seeds = Annotated[list[Seed], NoRepeats, Field(min_length=1)]


class Section(BaseModel):
    """A part of the config: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def canonical(self) -> str:
        """Return the section as JSON with sorted keys: equal settings give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word nearest to one, or nothing where none is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{matches[0]}'?" if matches else ""
