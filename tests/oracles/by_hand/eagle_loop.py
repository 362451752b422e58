"""Run an `eagle` export in the loop of EAGLE's own code, and compare the acceptance length with this project's.

    python -m tests.oracles.by_hand.eagle_loop --checkout DIR --python DIR/bin/python \
        --target results/models/M --head results/S/M/heads/H --baseline results/S/M/baseline/T0.parquet

The checkout is of https://github.com/SafeAILab/EAGLE at cb7e084; the other Python has torch, transformers 4.53.3 and
accelerate. EAGLE captures layers 2, N // 2 and N - 3, whatever a config says, so the head must read these or some of
them. Both sides decode greedily in float32 with trees of the same size; a last verification that the budget or an end
token cuts is left out on both sides. Exits with 1 where the acceptance lengths differ by more than one per cent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from speclayers.config import Runtime
from speclayers.decoding.acceptance import measure_acceptance
from speclayers.decoding.shards import Shards
from speclayers.decoding.turns import Turn, read_turns
from speclayers.drafting.eagle3 import Eagle3Drafter
from speclayers.drafting.head import load_head
from speclayers.drafting.tree import TreeShape
from speclayers.export.engine import served_target
from speclayers.export.folder import export_head
from speclayers.specs import DecodeSpec, ExportSpec
from speclayers.tables import BASELINE, read_table
from speclayers.targets.target import Target, load_target

PEER = Path(__file__).with_name("eagle_peer.py")
TOLERANCE = 0.01


def readable_target(source: Path, folder: Path) -> None:
    """Link a model's files to where EAGLE can read them, and settle what the preflight's notes say of it."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    edit(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    rope = json.loads((folder / "config.json").read_text()).get("rope_parameters", {})
    edit(folder / "config.json", {"rope_theta": rope["rope_theta"]} if rope else {})
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        index.write_text(json.dumps({"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}))


def edit(path: Path, changes: dict[str, Any]) -> None:
    """Put a changed copy of a JSON file where a link was."""
    settings = json.loads(path.read_text()) | changes
    path.unlink()
    path.write_text(json.dumps(settings))


def greedy_answer(target: Target, turn: Turn, budget: int) -> Turn:
    """Return a turn with a longer greedy answer, from transformers' own generate."""
    ids = torch.tensor([turn.prompt])
    made = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=budget, do_sample=False, pad_token_id=0
    )[0, len(turn.prompt) :].tolist()
    return turn._replace(greedy=made, margins=[1.0] * len(made))  # no tie is excused


def ours(target: Target, turns: list[Turn], args: argparse.Namespace, work: Path) -> list[list[int]]:
    """Return the drafted tokens accepted by each verification of each turn, the last one left out."""
    head = load_head(args.head, target)
    shape = TreeShape(args.nodes, args.depth, args.top_k)
    spec = DecodeSpec(runtime=target.runtime, max_new_tokens=args.budget, depth=args.depth, top_k=args.top_k, seed=0)
    drafter = Eagle3Drafter(target, head, shape)
    rows = measure_acceptance(target, drafter, [[turn] for turn in turns], spec, 0.0, Shards(work, "ours"))
    found: dict[Any, list[int]] = {(turn.question_id, turn.turn): [] for turn in turns}
    for row in rows["cycles"]:
        found[row["question_id"], row["turn"]].append(row["accepted"])
    return [accepted[:-1] for accepted in found.values()]


def theirs(target: Target, turns: list[Turn], args: argparse.Namespace, work: Path) -> list[list[int]]:
    """Return the same of EAGLE's loop, after checking that it decodes greedily, too."""
    readable_target(args.target, work / "target")
    head = load_head(args.head, target)
    facts = served_target(args.target, target.manifest)
    spec = ExportSpec(dtype="float32", speculative_tokens=args.depth)
    fit = export_head("eagle", head.config, head.state_dict(), facts, work / "head", spec)
    print(fit.text(), file=sys.stderr)
    job = {"target": str(work / "target"), "head": str(work / "head"), "nodes": args.nodes}
    # EAGLE's depth counts what follows the first level
    job |= {"depth": args.depth - 1, "top_k": args.top_k, "budget": args.budget, "prompts": [t.prompt for t in turns]}
    (work / "job.json").write_text(json.dumps(job))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [args.python, str(PEER), str(args.checkout), str(work / "job.json")]
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    answers = json.loads((work / "answers.json").read_text())
    for turn, answer in zip(turns, answers, strict=True):
        both = min(len(turn.greedy), len(answer["tokens"]))
        if answer["tokens"][:both] != turn.greedy[:both]:
            raise SystemExit(f"question {turn.question_id}: EAGLE's own answer is not greedy decoding's")
    return [answer["accepted"] for answer in answers]


def main() -> int:
    """Decode with both loops, print one JSON object."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--checkout", type=Path, required=True, help="folder of EAGLE's repository")
    arguments.add_argument("--python", required=True, help="Python of EAGLE's environment")
    arguments.add_argument("--target", type=Path, required=True, help="folder of the fetched model")
    arguments.add_argument("--head", type=Path, required=True, help="folder of a trained head")
    arguments.add_argument("--baseline", type=Path, required=True, help="plain greedy decoding, for its prompts")
    arguments.add_argument("--budget", type=int, default=64, help="most tokens of an answer")
    arguments.add_argument("--nodes", type=int, default=30, help="nodes of the draft tree, the root counted")
    arguments.add_argument("--depth", type=int, default=6, help="longest drafted path")
    arguments.add_argument("--top-k", type=int, default=10, help="beams, and children of each")
    arguments.add_argument("--turns", type=int, default=12, help="turns to decode")
    args = arguments.parse_args()
    target = load_target(args.target, args.target.name, Runtime())
    questions = read_turns(read_table(args.baseline, BASELINE))
    turns = [greedy_answer(target, turn, args.budget) for turns in questions for turn in turns][: args.turns]
    with tempfile.TemporaryDirectory() as folder:
        own = ours(target, turns, args, Path(folder) / "work")
        peer = theirs(target, turns, args, Path(folder))
    pairs = [(a, b) for mine, other in zip(own, peer, strict=True) for a, b in zip(mine, other, strict=False)]
    lengths = [1 + sum(side) / len(side) for side in zip(*pairs, strict=True)]
    ratio = lengths[0] / lengths[1]
    alike = sum(a == b for a, b in pairs)
    print(json.dumps({"ours": lengths[0], "eagle": lengths[1], "ratio": ratio, "cycles": len(pairs), "alike": alike}))
    return int(abs(ratio - 1) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
