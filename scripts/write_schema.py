"""Write schemas/config.schema.json from the config's models, or check that it is in step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from speclayers.command import run
from speclayers.config import Study
from speclayers.errors import UserError
from speclayers.files import write_text

SCHEMA = Path(__file__).resolve().parent.parent / "schemas" / "config.schema.json"


def main() -> None:
    """Write the schema; with --check, only compare."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="fail when the file is not in step")
    check = arguments.parse_args().check
    schema = Study.model_json_schema()
    # a study file overrides the default config, so no single file has to be complete
    for partial in ("Study", "StudySection"):
        (schema if partial == "Study" else schema["$defs"][partial]).pop("required")
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"
    if not check:
        write_text(SCHEMA, text)
    elif not SCHEMA.exists() or SCHEMA.read_text(encoding="utf-8") != text:
        raise UserError(f"{SCHEMA.name}: is not in step with the config; run `make schema`")


if __name__ == "__main__":
    run(main)
