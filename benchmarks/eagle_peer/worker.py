"""EAGLE's own loop as a process of its own: prompts in, answers and times out, one line of JSON each.

Runs in an environment that EAGLE's code imports in (transformers 4.53.3 at the newest), not in this project's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from stopwatch import Stopwatch


def main() -> None:
    """Load target and head, say so, then answer until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, help="checkout of SafeAILab/EAGLE")
    parser.add_argument("--target", type=Path, required=True, help="target as its transformers reads it")
    parser.add_argument("--head", type=Path, required=True, help="head in EAGLE's layout")
    parser.add_argument("--nodes", type=int, required=True, help="nodes of the tree, the root counted")
    parser.add_argument("--depth", type=int, required=True, help="longest drafted path")
    parser.add_argument("--top-k", type=int, required=True, help="children tried per node")
    parser.add_argument("--threads", type=int, required=True, help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    answers, sys.stdout = sys.stdout, sys.stderr  # its code prints
    sys.path.insert(0, str(options.checkout))
    from eagle.model.ea_model import EaModel

    model = EaModel.from_pretrained(
        use_eagle3=True,
        base_model_path=str(options.target),
        ea_model_path=str(options.head),
        total_token=options.nodes,
        depth=options.depth - 1,  # it counts the expansions below the first level
        top_k=options.top_k,
        torch_dtype=torch.float32,
    ).eval()
    model.tokenizer = SimpleNamespace(eos_token_id=-1)  # nothing but the budget ends an answer
    head, base = model.ea_layer, model.base_model
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = torch.tensor([asked["prompt"]])
        with Stopwatch(base.model, (base.lm_head, head, head.norm, head.lm_head)) as watch:
            begin = time.perf_counter()
            ids, new_tokens, _ = model.eagenerate(prompt, max_new_tokens=asked["budget"] - 1, log=True)
            seconds = time.perf_counter() - begin
        told = {"tokens": ids[0, prompt.shape[1] :].tolist(), "seconds": seconds, "cycles": watch.cycles()}
        print(json.dumps(told | {"new_tokens": int(new_tokens)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
