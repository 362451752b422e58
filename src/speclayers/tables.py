"""Parquet schemas, and tables written whole and read with a check."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from speclayers.errors import UserError
from speclayers.files import atomic_path

SCHEMA_VERSION = "1"


class Column(NamedTuple):
    """A column: name, Arrow type, unit (empty when it has none) and its meaning in one line."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A table's name and columns, in order."""

    name: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, unit and meaning in each field's metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in self.columns]
        )


@dataclass(frozen=True)
class Origin:
    """Where a table comes from; written into its file's metadata.

    Args:
        model: Name of the model.
        fingerprint: Fingerprint of the settings and code behind it.
    """

    model: str
    fingerprint: str

    def metadata(self) -> dict[str, str]:
        """Return the metadata entries, library versions included."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "torch": _installed("torch"),
            "transformers": _installed("transformers"),
        }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # geometry and reports have environments without it


_str, _i64, _i32, _f64, _bool = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()
_ids = pa.list_(pa.int32())
_layers = pa.list_(pa.int32())

CORPUS = Table(
    "corpus",
    (
        Column("sample_id", _str, "", "Id of the sequence: its prompt's, followed by the turn where that is not 0."),
        Column("prompt_id", _str, "", "Prompt; all turns of a conversation share it."),
        Column("source", _str, "", "Where the prompt comes from: bundled, file or dataset."),
        Column("category", _str, "", "Category of the prompt."),
        Column("turn", _i32, "", "Turn of the conversation, from 0."),
        Column("input_ids", _ids, "", "Rendered prompt and response, as token ids."),
        Column("response_start", _i32, "tokens", "Position of the first response token."),
        Column("text", _str, "", "The response, decoded."),
        Column("prompt_hash", _str, "", "SHA-256 of the rendered prompt."),
    ),
)

ENTROPY = Table(
    "geometry/entropy",
    (
        Column("layer", _i32, "", "Layer index: 0 embedding, N last block before the final norm."),
        Column("subset", _str, "", "Tokens used: all, filtered or random."),
        Column("sinks_kept", _bool, "", "Whether the first position was added back."),
        Column("alpha", _f64, "", "Rényi order; 1 is Shannon."),
        Column("preprocessing", _str, "", "What was done to the rows before the Gram matrix."),
        Column("sample_id", _str, "", "Prompt; null when pooled over prompts."),
        Column("n_tokens", _i64, "tokens", "Rows of the Gram matrix."),
        Column("entropy", _f64, "nats", "Matrix entropy; compare it at equal n_tokens only."),
        Column("share_of_ln_n", _f64, "", "Entropy over ln n_tokens."),
        Column(
            "share_of_maximum",
            _f64,
            "",
            "Entropy over ln min(n_tokens, width), the most that it can be; null where that is 0.",
        ),
        Column(
            "information_flow",
            _f64,
            "nats",
            "What the package information_flow computes on these rows; null unless geometry.information_flow asks.",
        ),
        Column("ci_low", _f64, "nats", "Lower 95 % limit, block jackknife; null for one prompt, and with sinks kept."),
        Column("ci_high", _f64, "nats", "Upper 95 % limit, block jackknife; null for one prompt, and with sinks kept."),
        Column("effective_rank", _f64, "", "Exp of the entropy of the singular values, whatever alpha; pooled only."),
    ),
)

CKA = Table(
    "geometry/cka",
    (
        Column("layer_a", _i32, "", "First layer."),
        Column("layer_b", _i32, "", "Second layer."),
        Column("estimator", _str, "", "debiased (HSIC1) or biased."),
        Column("subset", _str, "", "Tokens used: all, filtered or random."),
        Column("n_tokens", _i64, "tokens", "Rows of the Gram matrices."),
        Column("value", _f64, "", "Linear CKA; null where too few tokens differ for an estimate."),
        Column("ci_low", _f64, "", "Lower 95 % limit by the block jackknife."),
        Column("ci_high", _f64, "", "Upper 95 % limit by the block jackknife."),
    ),
)

GRAM = Table(
    "geometry/gram",
    (
        Column("layer_a", _i32, "", "First layer."),
        Column("layer_b", _i32, "", "Second layer."),
        Column("subset", _str, "", "Tokens used: all, filtered or random."),
        Column("block_a", _i32, "", "Block of prompts of the Gram matrices' rows; null for all rows and columns."),
        Column("block_b", _i32, "", "Block of prompts of their columns; null for all rows and columns."),
        Column(
            "inner_product", _f64, "", "Inner product of the centred, trace-normalised Gram matrices, or of a part."
        ),
    ),
)

TURNING = Table(
    "geometry/turning",
    (
        Column("layer", _i32, "", "Layer; the score looks at this layer and the next."),
        Column("score", _f64, "", "Turning score."),
        Column("is_turning_point", _bool, "", "Local maximum above mean + 1 sd."),
        Column("block", _i32, "", "Run of layers between turning points, from 0."),
    ),
)

FILTER_EFFECT = Table(
    "geometry/filter_effect",
    (
        Column("segment", _str, "", "Third of the depth: first, middle or last."),
        Column("n_prompts", _i64, "prompts", "Prompts long enough to count."),
        Column("variance_all", _f64, "nats²", "Variance over prompts, all tokens."),
        Column("variance_filtered", _f64, "nats²", "The same on tokens of highest predictive entropy."),
        Column("variance_random", _f64, "nats²", "The same on as many random tokens."),
        Column("reduction", _f64, "", "1 − filtered / all."),
        Column("reduction_low", _f64, "", "Lower 95 % limit of `reduction`, jackknife over prompts."),
        Column("reduction_high", _f64, "", "Upper 95 % limit of `reduction`."),
        Column("reduction_random", _f64, "", "1 − filtered / random."),
        Column("reduction_random_low", _f64, "", "Lower 95 % limit of `reduction_random`."),
        Column("reduction_random_high", _f64, "", "Upper 95 % limit of `reduction_random`."),
    ),
)

CONVERGENCE = Table(
    "geometry/convergence",
    (
        Column("layer", _i32, "", "Layer."),
        Column("n_blocks", _i32, "", "Blocks of prompts used, the first ones."),
        Column("n_tokens", _i64, "tokens", "Filtered tokens of these blocks."),
        Column("entropy", _f64, "nats", "Pooled Rényi entropy of order 2."),
        Column("cka_next", _f64, "", "Debiased CKA to the next layer; null for the last, and where unknown."),
    ),
)

LENS = Table(
    "geometry/lens",
    (
        Column("layer", _i32, "", "Layer that the prediction is read off, by the target's final norm and LM head."),
        Column("n_tokens", _i64, "tokens", "Response tokens sampled, sinks left out."),
        Column("lens_entropy", _f64, "nats", "Entropy over the vocabulary, mean over tokens; null when none."),
        Column("ci_low", _f64, "nats", "Lower 95 % limit by the block jackknife."),
        Column("ci_high", _f64, "nats", "Upper 95 % limit by the block jackknife."),
    ),
)

FILTER_SWEEP = Table(
    "geometry/filter_sweep",
    (
        Column("scope", _str, "", "Where the share is taken: per_prompt, pooled, or absolute (by threshold)."),
        Column("share", _f64, "", "Share of tokens kept; for the absolute scope what its threshold keeps of all."),
        Column("subset", _str, "", "Tokens used: filtered, or random with as many of each prompt."),
        Column("segment", _str, "", "Third of the depth: first, middle or last."),
        Column("n_prompts", _i64, "prompts", "Prompts long enough that keep two tokens or more."),
        Column("n_tokens", _i64, "tokens", "Tokens kept of these prompts' first ones."),
        Column("entropy", _f64, "nats", "Shannon entropy of a prompt's tokens, mean over prompts and layers."),
        Column("variance", _f64, "nats²", "Variance over prompts, mean over layers."),
        Column("variance_low", _f64, "nats²", "Lower 95 % limit of `variance`, jackknife over prompts."),
        Column("variance_high", _f64, "nats²", "Upper 95 % limit of `variance`."),
    ),
)

FILTER_SETS = Table(
    "geometry/filter_sets",
    (
        Column("scope", _str, "", "Where the share is taken: per_prompt, pooled, or absolute (by threshold)."),
        Column("share", _f64, "", "Share of tokens kept; for the absolute scope what its threshold keeps of all."),
        Column("subset", _str, "", "Tokens used: filtered, or random with as many of each prompt."),
        Column("n_tokens", _i64, "tokens", "Rows, drawn from those kept, on which the layers were chosen."),
        Column("k", _i32, "layers", "Number of layers."),
        Column("layers", _layers, "", "What elsi chooses there by Rényi entropy of order 2, sorted."),
    ),
)

GEOMETRY = {
    table.name.partition("/")[2]: table
    for table in (ENTROPY, CKA, GRAM, TURNING, FILTER_EFFECT, CONVERGENCE, LENS, FILTER_SWEEP, FILTER_SETS)
}
"""Table of each of layout.GEOMETRY_TABLES."""

SELECTIONS = Table(
    "selection/selections",
    (
        Column("selector", _str, "", "Selector."),
        Column("k", _i32, "layers", "Number of layers asked for."),
        Column("seed", _i64, "", "Seed of the selector."),
        Column("layers", _layers, "", "Chosen layers, sorted."),
        Column("trained", _bool, "", "Whether heads are trained on this set."),
        Column("score", _f64, "nats", "E(S): Shannon entropy of the layer set."),
        Column("runner_up", _str, "", "Next best sets with their scores, as JSON."),
        Column("stability", _str, "", "Share of half-samples in which each layer is chosen, as JSON."),
        Column(
            "half_sample_set",
            _layers,
            "",
            "What the half-samples' search (order 2 for sets, Shannon's for single layers) chooses on all prompts.",
        ),
        Column("reason", _str, "", "Why these layers, in words."),
        Column("trace", _str, "", "Every step of the search, as JSON: action, layers, value, and what the value is."),
    ),
)

SCREENING = Table(
    "screening",
    (
        Column("candidate", _str, "", "Layer set, by its name."),
        Column("layers", _layers, "", "Its layers, sorted."),
        Column("proposed_by", _str, "", "Selectors that chose it, `single layer`, or both, joined by commas."),
        Column("rung", _i32, "", "Round of the race, from 0."),
        Column("budget", _i64, "tokens", "Response tokens to learn from up to the end of this rung."),
        Column("tokens", _i64, "tokens", "Response tokens learnt from: the budget, up to the end of its last step."),
        Column("simulated_length", _f64, "tokens", "1 + Σ_j Π_{i≤j} accuracy_i on held-out responses."),
        Column("ci_low", _f64, "tokens", "Lower 95 % limit, jackknife over prompts."),
        Column("ci_high", _f64, "tokens", "Upper 95 % limit."),
        Column("responses", _i64, "", "Held-out prompts judged on, over which the limits are."),
        Column("in_race", _bool, "", "Whether it competes in this rung; if not, it is trained for the curve only."),
        Column("kept", _bool, "", "Whether it goes on to the next rung; in the last one, whether it wins."),
    ),
)
TRAIN, HELD_OUT = "train", "held_out"
"""Values of `split` in the training table."""

TRAINING = Table(
    "heads/training",
    (
        Column("step", _i32, "", "Optimiser step, from 1."),
        Column("epoch", _f64, "", "Passes over the training responses."),
        Column("split", _str, "", "train: the step's own batch; held_out: responses that are never trained on."),
        Column("ttt_step", _i32, "", "Step of training-time test, from 0."),
        Column("loss", _f64, "nats", "What `draft.loss` names, mean over the slots whose best token can be drafted."),
        Column("accuracy", _f64, "", "Share of slots whose best draft token is the target's."),
        Column("expected_acceptance", _f64, "", "Mean over slots of Σ min(p, q)."),
        Column("simulated_length", _f64, "tokens", "1 + Σ_j Π_{i≤j} accuracy_i, the same in each row of a step."),
        Column("slots", _i64, "tokens", "Slots that counted."),
    ),
)

BASELINE = Table(
    "baseline",
    (
        Column("question_id", _i64, "", "Question."),
        Column("category", _str, "", "Category of the question."),
        Column("turn", _i32, "", "Turn, from 0."),
        Column("prompt_ids", _ids, "", "Rendered prompt, as token ids."),
        Column("positions", _i32, "tokens", "Positions that prompt, longest answer and deepest drafted path take."),
        Column("limit", _i32, "tokens", "Those the model has. Where it has fewer, the whole question is skipped."),
        Column("output_ids", _ids, "", "Plain decoding's answer, as token ids; empty where the question is skipped."),
        Column("top2_margin", pa.list_(pa.float32()), "", "Gap of the two highest logits at each answered token."),
        Column("equals_generate", _bool, "", "Whether transformers' generate gives the same ids; null when not asked."),
    ),
)

CYCLES = Table(
    "acceptance/cycles",
    (
        Column("question_id", _i64, "", "Question."),
        Column("category", _str, "", "Category of the question."),
        Column("turn", _i32, "", "Turn, from 0."),
        Column("cycle", _i32, "", "Verification within the turn, from 0."),
        Column("drafted", _i32, "tokens", "Draft tokens verified."),
        Column("accepted", _i32, "tokens", "Draft tokens accepted, none behind an end token."),
        Column(
            "emitted", _i32, "tokens", "Tokens emitted: accepted and the target's own, up to the end token or budget."
        ),
        Column("cut_by_budget", _bool, "", "Whether the token budget cut the cycle; such cycles are left out of τ."),
        Column("draft_forwards", _i32, "", "Forward passes of the drafter."),
        Column("layer_forwards", _f64, "", "Decoder-layer passes of the drafter; attention or MLP alone counts half."),
        Column("depth", _i32, "tokens", "Longest drafted path."),
        Column("skipped_attention", _layers, "", "Blocks whose attention drafting skipped; null for other drafters."),
        Column("skipped_mlp", _layers, "", "Blocks whose MLP drafting skipped; null for other drafters."),
        Column("search_layer_forwards", _f64, "", "Decoder-layer passes spent on looking for layers to skip."),
        Column("search_rows", _i64, "", "States run over in them."),
        Column(
            "search_score", _f64, "", "What that search reached: cosine (clasp), matchness (swift); null when none."
        ),
    ),
)

TURNS = Table(
    "acceptance/turns",
    (
        Column("question_id", _i64, "", "Question."),
        Column("category", _str, "", "Category of the question."),
        Column("turn", _i32, "", "Turn, from 0."),
        Column("prompt_tokens", _i32, "tokens", "Length of the prompt."),
        Column("new_tokens", _i32, "tokens", "Length of the answer."),
        Column("cycles", _i32, "", "Verifications."),
        Column("identical_to_greedy", _bool, "", "Whether the ids equal plain decoding's; null when T > 0."),
        Column("first_difference", _i32, "tokens", "Position of the first different id; null when none."),
        Column("margin_there", _f64, "", "Plain decoding's top-2 logit gap at that position; null when none."),
        Column("output_ids", _ids, "", "The answer, as token ids."),
    ),
)

SKIP_SEARCH = Table(
    "rivals/search",
    (
        Column("trial", _i32, "", "Trial of the search, from 0."),
        Column("skipped_attention", _layers, "", "Blocks whose attention drafting skipped."),
        Column("skipped_mlp", _layers, "", "Blocks whose MLP drafting skipped."),
        Column("tokens", _i64, "tokens", "Tokens emitted in verifications."),
        Column("cycles", _i64, "", "Verifications."),
        Column("accepted", _i64, "tokens", "Draft tokens accepted."),
        Column(
            "layer_forwards_per_token",
            _f64,
            "",
            "Decoder-layer passes of drafting and verifying for each token, cycles cut by the budget left out; plain"
            " decoding takes as many as the model has layers.",
        ),
        Column("seconds_per_token", _f64, "s", "Time of both; null where passes are what is made small."),
        Column("best", _bool, "", "Whether it is better than all trials before it; the last such one is chosen."),
        Column(
            "search_layer_forwards",
            _f64,
            "",
            "Decoder-layer passes that the trial took, prompts included; 0 where an earlier trial had the same set.",
        ),
    ),
)

SPEED = Table(
    "speed",
    (
        Column("question_id", _i64, "", "Question."),
        Column("category", _str, "", "Category of the question."),
        Column("turn", _i32, "", "Turn, from 0."),
        Column("draft_s", _f64, "s", "Time in the drafter."),
        Column("verify_s", _f64, "s", "Time in the target's verification passes."),
        Column("other_s", _f64, "s", "Time outside both."),
        Column("wall_s", _f64, "s", "Time of the whole answer after the prompt's forward pass."),
        Column("baseline_wall_s", _f64, "s", "The same for plain decoding of the same prompt, interleaved."),
        Column("new_tokens", _i32, "tokens", "Length of the answer."),
        Column("baseline_new_tokens", _i32, "tokens", "Length of plain decoding's answer."),
    ),
)


def activation_column(layer: int, n_layers: int) -> str:
    """Return the column name of a layer's states: h00 … hNN, three digits from 100 layers on."""
    return f"h{layer:0{3 if n_layers >= 100 else 2}d}"


def write_table(path: Path, table: Table, frame: pd.DataFrame, origin: Origin) -> None:
    """Write rows that match a table's schema.

    Args:
        path: Parquet file to write.
        table: Its schema.
        frame: One column for each column of the schema, in any order.
        origin: Goes into the file's metadata.

    Raises:
        ValueError: Columns are missing, unknown or of another type (a bug of the caller).
        UserError: The file cannot be written.
    """
    names = [column.name for column in table.columns]
    if set(frame.columns) != set(names):
        raise ValueError(f"{table.name}: columns {sorted(frame.columns)} instead of {sorted(names)}")
    rows = pa.Table.from_pandas(frame[names], schema=table.schema, preserve_index=False, safe=True)
    rows = rows.replace_schema_metadata(origin.metadata())
    with atomic_path(path) as temporary:
        pq.write_table(rows, temporary, compression="zstd")


def read_table(path: Path, table: Table) -> pd.DataFrame:
    """Read a table and check it against its schema.

    Raises:
        UserError: The file is missing, truncated, or has other columns.
    """
    try:
        rows = pq.read_table(path, partitioning=None)
    except FileNotFoundError:
        raise UserError(f"{path}: file is missing") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: is no readable Parquet file ({error}); delete it and run again") from None
    if not rows.schema.equals(table.schema, check_metadata=False):
        raise UserError(f"{path}: has other columns than {table.name} of this version; delete it and run again")
    frame: pd.DataFrame = rows.to_pandas()
    return frame


def read_origin(path: Path) -> dict[str, str]:
    """Return the metadata that `write_table` put into a file.

    Raises:
        UserError: The file is missing or truncated.
    """
    try:
        metadata = pq.read_schema(path).metadata or {}
    except FileNotFoundError:
        raise UserError(f"{path}: file is missing") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: is no readable Parquet file ({error}); delete it and run again") from None
    return {key.decode(): value.decode() for key, value in metadata.items()}
