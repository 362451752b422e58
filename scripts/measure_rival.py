"""Decode the benchmark with a drafter that needs no head and count how many of its tokens the target accepts."""

from __future__ import annotations

from pathlib import Path

import torch

from speclayers import command
from speclayers.analysis.inputs import named_paths
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.shards import Shards, job_key, to_frame
from speclayers.decoding.turns import read_turns
from speclayers.drafting.rival import build_rival
from speclayers.names import RivalName
from speclayers.specs import RivalSpec, read_spec
from speclayers.tables import BASELINE, CYCLES, TURNS, read_table, write_table
from speclayers.targets.manifest import MANIFEST
from speclayers.targets.target import load_target
