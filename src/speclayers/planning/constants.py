"""The one table of what things take, which the rules' resources and the plan both read.

The processor's row was fitted to the measured jobs of the default study on one core of a common server (AVX2), see
tests/unit/test_costs.py; the GPU's row has not been measured: it is what data sheets of large GPUs let expect of
programs that are not tuned.
"""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """How fast a device works.

    Args:
        measured: Whether these numbers were measured.
        forward_flops: Of forward passes over many tokens, 1/s.
        training_flops: Of forward and backward passes, 1/s.
        weight_bytes: Weights read by a pass of few tokens, bytes/s.
        layer_seconds: What a decoder layer costs a pass however few its tokens, s.
        step_seconds: The same of a step of training-time test, forward and backward, s.
        start_seconds: From a job's start until its model is loaded, without reading the weights, s.
        start_mb: Memory of Python with torch and transformers, MB.
    """

    measured: bool
    forward_flops: float
    training_flops: float
    weight_bytes: float
    layer_seconds: float
    step_seconds: float
    start_seconds: float
    start_mb: float


PROCESSOR = Machine(True, 55e9, 75e9, 10e9, 5e-4, 0.018, 7, 560)
GPU = Machine(False, 100e12, 60e12, 1e12, 7e-4, 0.02, 30, 4000)


class Host(NamedTuple):
    """What does not depend on the model's device.

    Args:
        gram_flops: Of products of Gram matrices in float64, 1/s.
        eigen_flops: Of the token filter's sweep, 1/s.
        search_seconds: Selection, half-samples included, for each layer at 1024 search rows, s.
        disk_bytes: Weights read from a disk, bytes/s.
        package_bytes: Weights unpacked from a quantised file, bytes/s.
        network_bytes: Weights downloaded, bytes/s; assumed.
        start_seconds: Start of a job without torch, s.
        start_mb: Memory of a job without torch, MB.
        held_mb: Pieces of Gram matrices held at a time, MB.
        mapped_mb: Most of an activation dump, or of stored features, that stays mapped in memory, MB.
        page_seconds: A job that unites tables or draws a page, for each model, s.
        run_mb: Tables of one acceptance or speed run on disk, MB.
    """

    gram_flops: float
    eigen_flops: float
    search_seconds: float
    disk_bytes: float
    package_bytes: float
    network_bytes: float
    start_seconds: float
    start_mb: float
    held_mb: float
    mapped_mb: float
    page_seconds: float
    run_mb: float


HOST = Host(55e9, 25e9, 1.0, 500e6, 22e6, 50e6, 5, 250, 130, 8000, 2, 0.02)

# ---------------------------------------------------------------- what texts are like

PROMPT_TOKENS = 80
"""Tokens of a rendered bundled prompt, mean; other prompts: half of max_prompt_tokens."""

QUESTION_TOKENS = {"bundled": 97, "file": 400, "spec_bench": 400}
"""Tokens of a rendered benchmark turn, mean, by the questions' source; only the first is measured."""

QUESTIONS = {"bundled": 144, "file": 480, "spec_bench": 480}
"""Questions where all are asked, by their source; of a file it is assumed."""

TURNS = 7 / 6
"""Turns of a question, mean: one of the six categories has two."""

TOKENS_A_CYCLE = 1.8
"""Tokens that a verification yields, mean over the default study's heads of its larger model."""

RIVAL_PASSES = 4
"""Time that a drafter without a head takes over plain decoding's, at most: layer skipping drafts and searches with the
target itself; a guess, not measured."""

SEARCH_PASSES = 2
"""Time that a trial of a search for layers to skip takes over plain decoding's, mean; a guess, not measured."""

# ---------------------------------------------------------------- what models are like

KEYS_OF_WIDTH = 1 / 3
"""Width of a layer's keys over that of its residual stream, where heads share keys."""

LAYER_WEIGHTS = 14
"""Weights of a head's decoder layer, in squares of the width: its attention reads two widths."""

LOGIT_COPIES = 8
"""Copies of a batch's logits, in float32, that training a whole small model holds."""

DUMPED_ROWS = 4096
"""Rows whose logits the dump holds at a time."""

GPU_MB = 80_000
"""Memory of one GPU, MB: how many a model needs that is spread over several."""

# ---------------------------------------------------------------- what jobs ask for

MEMORY_MARGIN = 1.5
TIME_MARGIN = 3
LEAST_MB = 1000
LEAST_MINUTES = 10
"""Jobs ask for so many times the estimate, and no less than this; a retry asks for twice, then three times as much."""
