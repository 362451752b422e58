"""Decoding: time outside the models' passes; tokens per second beside transformers and EAGLE's own code.

    python benchmarks/decode.py --eagle CHECKOUT --eagle-python PYTHON

also runs the same head and target in EAGLE's loop, in the environment of PYTHON, which must import that checkout.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from eagle_peer.stopwatch import Stopwatch
from figures import embedded_target, parser, report, rotate
from safetensors import safe_open
from transformers import GenerationConfig

from speclayers.config import DraftConfig
from speclayers.corpus.chat import render
from speclayers.corpus.questions import bundled_questions_path, choose_questions, read_questions
from speclayers.decoding.loop import Answer, speculate
from speclayers.decoding.passes import TargetPasses
from speclayers.decoding.plain import decode_plain
from speclayers.decoding.sampling import GREEDY
from speclayers.drafting.drafter import Drafter
from speclayers.drafting.eagle3 import Eagle3Drafter
from speclayers.drafting.head import Eagle3Head, load_head
from speclayers.drafting.initialise import head_config, new_head
from speclayers.drafting.prompt_lookup import PromptLookupDrafter
from speclayers.drafting.tree import TreeShape
from speclayers.drafting.vocabulary import DraftVocabulary
from speclayers.export.engine import served_target
from speclayers.export.folder import export_head
from speclayers.specs import ExportSpec
from speclayers.targets.manifest import Manifest
from speclayers.targets.target import Target

SHAPE = TreeShape(nodes=30, depth=6, top_k=10)
HEAD = Path("results/quickstart/smollm2-135m/heads/eagle3.l02-l15-l27.s0")
LOOKUP = (10, 2)
"""Drafted tokens and longest n-gram, transformers' defaults."""
REPETITIVE = ("rag", "summarization")
"""Categories whose answers repeat their prompts: where prompt lookup drafts most."""

Prompt = list[int]


def eagle_layers(n_layers: int) -> tuple[int, int, int]:
    """Return the layers that EAGLE's code captures, whatever a head's config says."""
    return (2, n_layers // 2, n_layers - 3)


def endless(target: Target) -> Target:
    """Return the target without stop tokens, ours or generate's, so that every answer uses its whole budget."""
    target.model.generation_config = GenerationConfig()  # generate would fill in from the model's own
    return dataclasses.replace(target, manifest=target.manifest.model_copy(update={"stop_ids": []}))


def prompts_of(target: Target, per_category: int, categories: Sequence[str] = ()) -> list[Prompt]:
    """Return first turns of bundled questions, as token ids."""
    questions = choose_questions(read_questions(bundled_questions_path()), per_category, 0)
    asked = [question for question in questions if not categories or question.category in categories]
    return [render(target.tokenizer, question.turns[:1], [], {}) for question in asked]


def head_of(target: Target, folder: Path) -> Eagle3Head:
    """Return a trained head; a freshly initialised one, whose drafts are rarely accepted, where there is none."""
    if folder.exists():
        return load_head(folder, target)
    vocabulary = DraftVocabulary(torch.arange(8192), 1.0)
    config = head_config(
        target, DraftConfig(vocabulary=8192), eagle_layers(target.n_layers), 0, "benchmark", vocabulary
    )
    return new_head(config, vocabulary, target, "target").requires_grad_(False).eval()


def draft(target: Target, drafter: Drafter, prompt: Prompt, budget: int) -> Answer:
    """Decode one answer with a drafter, greedily."""
    passes = TargetPasses(target, len(prompt) + budget + drafter.rows, drafter.rows)
    return speculate(passes, drafter, prompt, budget, GREEDY, torch.Generator())


def watched(target: Target, head: Eagle3Head, prompt: Prompt, budget: int) -> tuple[Answer, Stopwatch]:
    """Decode one answer with a head, noting its and the target's passes."""
    with Stopwatch(target.model, (head, head.fc, head.norm, head.lm_head)) as watch:
        answer = draft(target, Eagle3Drafter(target, head, SHAPE), prompt, budget)
    return answer, watch


def generate(target: Target, prompt: Prompt, budget: int, **settings: Any) -> Prompt:
    """Decode one answer with transformers' generate, greedily."""
    ids = torch.tensor([prompt])
    config = GenerationConfig(do_sample=False, max_new_tokens=budget, pad_token_id=0, **settings)
    with torch.inference_mode():
        output = target.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def compare_plain(target: Target, prompts: Sequence[Prompt], budget: int, rounds: int) -> None:
    """Report plain decoding beside generate's faster cache."""

    def ours(prompt: Prompt) -> Prompt:
        return decode_plain(
            TargetPasses(target, len(prompt) + budget), prompt, budget, GREEDY, torch.Generator()
        ).tokens

    ways: dict[str, Callable[[Prompt], Prompt]] = {
        "ours": ours,
        "dynamic cache": lambda prompt: generate(target, prompt, budget, cache_implementation="dynamic"),
        "static cache": lambda prompt: generate(target, prompt, budget, cache_implementation="static"),
    }
    times = _times(ways, prompts, rounds)
    peer = min(("dynamic cache", "static cache"), key=lambda way: sum(times[way]))
    _report_ratio(
        "plain decoding, tokens per second", times[peer], times["ours"], f"transformers generate, {peer}", 0.95
    )


def compare_lookup(target: Target, prompts: Sequence[Prompt], budget: int, rounds: int) -> None:
    """Report prompt lookup beside generate's own with the same settings."""
    tokens, ngram = LOOKUP
    settings = {"prompt_lookup_num_tokens": tokens, "max_matching_ngram_size": ngram}
    ways: dict[str, Callable[[Prompt], Prompt]] = {
        "ours": lambda prompt: draft(target, PromptLookupDrafter(tokens, ngram), prompt, budget).tokens,
        "generate": lambda prompt: generate(target, prompt, budget, **settings),
    }
    times = _times(ways, prompts, rounds)
    _report_ratio("prompt lookup, tokens per second", times["generate"], times["ours"], "transformers generate", 1.0)


def _times(
    ways: dict[str, Callable[[Prompt], Prompt]], prompts: Sequence[Prompt], rounds: int
) -> dict[str, list[float]]:
    """Return each way's seconds for every prompt, medians of interleaved rounds.

    Raises:
        SystemExit: The ways answer differently, so that their times could not be compared.
    """
    times: dict[str, list[float]] = {way: [] for way in ways}
    for prompt in prompts:
        answers = [way(prompt) for way in ways.values()]
        if any(answer != answers[0] for answer in answers):
            raise SystemExit(f"{', '.join(ways)} answer differently")
        runs = [lambda way=way: way(prompt) for way in ways.values()]  # noqa: B023 - called before the next prompt
        for way, seconds in zip(ways, rotate(runs, rounds), strict=True):
            times[way].append(seconds)
    return times


def _report_ratio(figure: str, theirs: Sequence[float], ours: Sequence[float], peer: str, goal: float) -> None:
    ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
    report(figure, statistics.median(ratios), "ratio", peer, goal)


# ---------------------------------------------------------------- EAGLE's own code


def eagle_target(folder: Path, target: Path) -> Path:
    """Write the target as older transformers and EAGLE's code read it; its weights are linked."""
    folder.mkdir()
    (folder / "model.safetensors").symlink_to((target / "model.safetensors").resolve())
    (folder / "tokenizer.json").symlink_to((target / "tokenizer.json").resolve())
    config = json.loads((target / "config.json").read_text())
    config |= {"rope_theta": config.pop("rope_parameters")["rope_theta"], "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((target / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    with safe_open(target / "model.safetensors", framework="pt") as weights:
        places = dict.fromkeys(weights.keys(), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


@contextmanager
def eagle_loop(options: Any, manifest: Manifest, head: Eagle3Head) -> Iterator[Callable[[Prompt, int], dict[str, Any]]]:
    """Start EAGLE's loop in its own environment; yield what answers a prompt there."""
    with tempfile.TemporaryDirectory() as folder:
        target, drafter = eagle_target(Path(folder, "target"), options.target), Path(folder, "head")
        facts, spec = (
            served_target(options.target, manifest),
            ExportSpec(dtype="float32", speculative_tokens=SHAPE.depth),
        )
        export_head("eagle", head.config, head.state_dict(), facts, drafter, spec)
        worker = Path(__file__).parent / "eagle_peer" / "worker.py"
        command = [options.eagle_python, worker, "--checkout", options.eagle, "--target", target, "--head", drafter]
        sizes = {"nodes": SHAPE.nodes, "depth": SHAPE.depth, "top-k": SHAPE.top_k, "threads": torch.get_num_threads()}
        command += [f"--{name}={value}" for name, value in sizes.items()]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        with subprocess.Popen(command, **pipes) as process:
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"{options.eagle}: EAGLE's code did not start under {options.eagle_python}; see above")

            def ask(prompt: Prompt, budget: int) -> dict[str, Any]:
                print(json.dumps({"prompt": prompt, "budget": budget}), file=process.stdin, flush=True)
                told: dict[str, Any] = json.loads(process.stdout.readline())
                return told

            yield ask
            process.stdin.close()


def compare_eagle(options: Any, target: Target, head: Eagle3Head, prompts: Sequence[Prompt], budget: int) -> None:
    """Report tokens per second and time outside forward passes beside EAGLE's loop, same head and target."""
    if (found := head.config.layers) != (read := eagle_layers(target.n_layers)):
        raise SystemExit(f"--head: reads layers {found}; EAGLE's code always captures {read}")
    rates, outside, alike = [], [], 0
    with eagle_loop(options, target.manifest, head) as theirs:
        theirs(prompts[0], budget), draft(target, Eagle3Drafter(target, head, SHAPE), prompts[0], budget)
        for prompt in prompts:
            their = theirs(prompt, budget)
            begin = time.perf_counter()
            answer, watch = watched(target, head, prompt, budget)
            seconds = time.perf_counter() - begin
            alike += their["tokens"][:budget] == answer.tokens
            rates.append(their["seconds"] / len(their["tokens"]) / (seconds / len(answer.tokens)))
            (cycles, _, ours_out), (their_cycles, _, theirs_out) = watch.cycles(), their["cycles"]
            outside.append(theirs_out / their_cycles / (ours_out / cycles))
    peer = "EAGLE's own loop"
    report("answers equal", alike / len(prompts), "share", peer, 1.0)
    report("EAGLE-3, tokens per second", statistics.median(rates), "ratio", peer, 1.0)
    report("EAGLE-3, time outside forward passes, theirs over ours", statistics.median(outside), "ratio", peer, 1.0)


def main() -> None:
    """Measure, print."""
    arguments = parser(__doc__)
    arguments.add_argument("--head", type=Path, default=HEAD, help="folder of a trained head; a new one if missing")
    arguments.add_argument("--eagle", type=Path, help="checkout of SafeAILab/EAGLE to compare with")
    arguments.add_argument("--eagle-python", default="python", help="Python whose environment runs that checkout")
    options = arguments.parse_args()
    target = endless(embedded_target(options.target))
    head = head_of(target, options.head)
    per_category, budget, rounds = (1, 32, 3) if options.quick else (2, 64, 5)
    prompts = prompts_of(target, per_category)
    if options.eagle:
        compare_eagle(options, target, head, prompts, budget)
        return
    watched(target, head, prompts[0], budget)
    shares = []
    for prompt in prompts:
        _, seconds, outside = watched(target, head, prompt, budget)[1].cycles()
        shares.append(outside / seconds)
    share = statistics.median(shares)
    report("share of a cycle outside forward passes", share, "share", "30 nodes, T = 0", 0.15, at_most=True)
    compare_plain(target, prompts[: 3 if options.quick else 6], budget, rounds)
    compare_lookup(target, prompts_of(target, per_category, REPETITIVE), budget, rounds)


if __name__ == "__main__":
    main()
