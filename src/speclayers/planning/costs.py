"""What a job takes: seconds, memory, disk and GPUs, as functions of the model's size and the study's settings.

The table of constants is `constants.py`. Work is counted as multiplications and additions: a forward pass takes two
a weight and token, training three times as much. Nothing is measured here, and nothing here changes a result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from speclayers.config import DraftConfig, SkipSearch, Study, TrainedSource
from speclayers.drafting.halving import plan_rungs
from speclayers.fingerprint import rival_jobs, rival_needs
from speclayers.layout import Layout
from speclayers.names import LAYERS_PATTERN, HeadName, RivalName, ShapeName, layers_of
from speclayers.planning import constants as known
from speclayers.planning.constants import GPU, HOST, PROCESSOR
from speclayers.planning.cost import MB, Cost, TargetCost
from speclayers.planning.fanout import most_sets
from speclayers.planning.sizes import ASSUMED, STORED_BYTES, Size, size_of
from speclayers.reading import checked_options
from speclayers.specs import train_medusa


def _layers_read(head: str) -> int:
    """Return how many layers a head reads, from its name; three where that does not say so."""
    named = re.search(LAYERS_PATTERN, head)
    return len(layers_of(named.group())) if named else 3


@dataclass(frozen=True)
class Costs:
    """The costs of a study's jobs.

    Args:
        study: Its config.
        layout: Where its results lie; manifests there tell the sizes of fetched models.
    """

    study: Study
    layout: Layout
    _sizes: dict[str, Size] = field(default_factory=dict, init=False, repr=False)

    def size(self, model: str) -> Size:
        """Return a model's size; looked up again until it is known, since it may be fetched meanwhile."""
        if self._sizes.get(model, ASSUMED) is ASSUMED:
            self._sizes[model] = size_of(self.study, model, self.layout)
        return self._sizes[model]

    def of(self, stage: str, wildcards: Mapping[str, str]) -> Cost:
        """Return what a job takes.

        Args:
            stage: Its rule.
            wildcards: The rule's wildcards; empty for a job of the whole study.
        """
        cost: Cost = getattr(self, f"_{stage}")(wildcards)
        return cost

    def memory(self, stage: str, wildcards: Mapping[str, str], attempt: int) -> int:
        """Return the memory that a job asks for, in MB: more at each attempt."""
        asked = max(known.MEMORY_MARGIN * self.of(stage, wildcards).memory_mb, known.LEAST_MB)
        return attempt * 500 * math.ceil(asked / 500)

    def minutes(self, stage: str, wildcards: Mapping[str, str], attempt: int) -> int:
        """Return the time that a job asks for, in minutes: more at each attempt."""
        return attempt * (known.LEAST_MINUTES + math.ceil(known.TIME_MARGIN * self.of(stage, wildcards).seconds / 60))

    # ------------------------------------------------------------ models

    def _target(self, model: str) -> TargetCost:
        config = self.study.models[model]
        machine = PROCESSOR if config.device == "cpu" else GPU
        return TargetCost(self.size(model), STORED_BYTES[config.dtype], machine)

    def gpus(self, model: str) -> int:
        """Return the GPUs of one process that runs a model: none, one, or as many as hold it where it is spread."""
        device = self.study.models[model].device
        if device == "auto":
            return max(1, math.ceil(known.MEMORY_MARGIN * self._target(model).weights_mb / known.GPU_MB))
        return int(device == "cuda")

    def _fetch_model(self, wildcards: Mapping[str, str]) -> Cost:
        model = wildcards["model"]
        kind, target = self.study.models[model].source.kind, self._target(model)
        stored = self.size(model).parameters * (4 if kind == "package" else 2)
        rate = {"package": HOST.package_bytes, "hub": HOST.network_bytes}.get(kind, HOST.disk_bytes)
        return Cost(target.machine.start_seconds + stored / rate, PROCESSOR.start_mb + 200, stored / MB)

    def _answering(self, model: str, count: int, prompt: float, new_tokens: int, batch: int) -> Cost:
        """Answer prompts in batches: one pass over all prompts, then one a token."""
        target, batches = self._target(model), math.ceil(count / batch)
        seconds = target.passes(batches, count * prompt) + target.passes(batches * new_tokens, count * new_tokens)
        keys = 2 * target.keys_mb(min(count, batch) * (prompt + new_tokens))  # finished ones leave: a copy
        memory = target.machine.start_mb + target.weights_mb + keys
        return Cost(target.start + seconds, memory, count * new_tokens * 1e-5, self.gpus(model))

    def _build_teacher(self, wildcards: Mapping[str, str]) -> Cost:
        source = self._trained_source(wildcards["model"])
        return self._answering(
            source.teacher, source.prompts, known.PROMPT_TOKENS, source.max_new_tokens, source.batch_size
        )

    def _make_tiny_model(self, wildcards: Mapping[str, str]) -> Cost:
        source, size = self._trained_source(wildcards["model"]), self.size(wildcards["model"])
        tokens = source.sequences_per_step * (known.PROMPT_TOKENS + source.max_new_tokens)
        seconds = source.steps * (6 * size.parameters * tokens / PROCESSOR.training_flops + PROCESSOR.step_seconds)
        weights = size.parameters * 4 / MB
        logits = known.LOGIT_COPIES * tokens * size.vocabulary * 4 / MB
        return Cost(
            PROCESSOR.start_seconds + seconds, PROCESSOR.start_mb + 4 * weights + logits, weights, 0, 6 * weights
        )

    def _trained_source(self, model: str) -> TrainedSource:
        source = self.study.models[model].source
        assert isinstance(source, TrainedSource)
        return source

    # ------------------------------------------------------------ responses and geometry

    def _prompt(self, split: str) -> float:
        """Return the tokens of a rendered prompt."""
        config = getattr(self.study.corpus, split)
        bundled = config.prompts.source == "bundled"
        longest: int = config.max_prompt_tokens
        return min(known.PROMPT_TOKENS if bundled else longest / 2, longest)

    def _tokens(self, split: str) -> float:
        """Return the tokens of a split's sequences, prompts included."""
        config = getattr(self.study.corpus, split)
        return float(config.count * (self._prompt(split) + config.max_new_tokens))

    def _build_corpus(self, wildcards: Mapping[str, str]) -> Cost:
        split = wildcards["split"]
        config, batch = getattr(self.study.corpus, split), self.study.corpus.batch_size
        return self._answering(wildcards["model"], config.count, self._prompt(split), config.max_new_tokens, batch)

    def _rows(self) -> float:
        """Return the response tokens that geometry uses."""
        config = self.study.corpus.calibration
        return float(min(self.study.geometry.max_tokens, config.count * config.max_new_tokens))

    def _dump_mb(self, model: str) -> float:
        target = self._target(model)
        return self._rows() * target.size.states * target.size.width * target.bytes_each / MB

    def _dump_activations(self, wildcards: Mapping[str, str]) -> Cost:
        model, config = wildcards["model"], self.study.corpus.calibration
        target, size = self._target(model), self.size(model)
        sequences = self._rows() / config.max_new_tokens
        seconds = target.passes(
            sequences / self.study.corpus.batch_size, sequences * self._prompt("calibration") + self._rows()
        )
        lens = 2 * self.study.geometry.lens_tokens * size.states * size.vocabulary * size.width
        disk = self._dump_mb(model)
        memory = target.machine.start_mb + target.weights_mb + known.DUMPED_ROWS * size.vocabulary * 4 / MB
        seconds += lens / target.machine.forward_flops + disk * MB / HOST.disk_bytes
        return Cost(target.start + seconds, memory, disk, self.gpus(model))

    def _gram_seconds(self, model: str) -> float:
        """Return the time of the inner products by the cheaper route: all rows, and the filtered and random ones."""
        size, geometry = self.size(model), self.study.geometry

        def products(rows: float) -> float:
            by_covariance = size.states**2 * size.width**2 * (rows + geometry.blocks**2)
            by_tiles = rows**2 * size.states * (size.width + size.states)
            return min(by_covariance, by_tiles)

        rows = self._rows()
        work = products(rows) + 2 * products(geometry.keep_share * rows)
        return work / (HOST.gram_flops if geometry.device == "cpu" else GPU.forward_flops / 20)

    def _gram_memory(self, model: str) -> float:
        return HOST.start_mb + HOST.held_mb + min(1.3 * self._dump_mb(model), HOST.mapped_mb)

    def _accumulate_gram(self, wildcards: Mapping[str, str]) -> Cost:
        model, geometry = wildcards["model"], self.study.geometry
        seconds = HOST.start_seconds + self._gram_seconds(model) / geometry.shards
        return Cost(seconds, self._gram_memory(model), 0, int(geometry.device == "cuda"), 2 * self._dump_mb(model))

    def _measure_geometry(self, wildcards: Mapping[str, str]) -> Cost:
        model, geometry = wildcards["model"], self.study.geometry
        shared = geometry.shards > 1
        seconds = HOST.start_seconds + (0 if shared else self._gram_seconds(model)) + self._entropy_seconds(model, 2)
        gpus = 0 if shared else int(geometry.device == "cuda")
        return Cost(seconds, self._gram_memory(model), 0.15 * self.size(model).layers, gpus, 2 * self._dump_mb(model))

    def _entropy_seconds(self, model: str, subsets: float) -> float:
        size = self.size(model)
        return 2 * subsets * self._rows() * size.states * size.width**2 / HOST.eigen_flops

    def _sweep_filter(self, wildcards: Mapping[str, str]) -> Cost:
        model = wildcards["model"]
        seconds = HOST.start_seconds + self._entropy_seconds(model, sum(self.study.geometry.sweep_shares))
        return Cost(seconds, self._gram_memory(model), 0.1)

    def _select_layers(self, wildcards: Mapping[str, str]) -> Cost:
        model = wildcards["model"]
        rows = self.study.geometry.search_rows / 1024
        seconds = HOST.start_seconds + HOST.search_seconds * self.size(model).layers * rows**2
        return Cost(seconds, HOST.start_mb + min(0.7 * self._dump_mb(model), HOST.mapped_mb) + 100 * rows, 0.1)

    # ------------------------------------------------------------ heads

    def _head_weights(self, model: str, layers: int) -> float:
        """Return the weights of a head: its decoder layer, fc and LM head."""
        size = self.size(model)
        vocabulary = min(self.study.draft.vocabulary, size.vocabulary)
        return size.width * ((known.LAYER_WEIGHTS + layers) * size.width + vocabulary)

    def _feature_mb(self, model: str) -> float:
        """Return the stored states of one layer over the training responses."""
        target = self._target(model)
        return self._tokens("training") * target.size.width * target.bytes_each / MB

    def _extract_features(self, wildcards: Mapping[str, str]) -> Cost:
        model = wildcards["model"]
        target, config = self._target(model), self.study.corpus
        disk = (len(layers_of(wildcards["layers"])) + 1) * self._feature_mb(model)  # the last layer, for the loss
        seconds = target.passes(config.training.count / config.batch_size, self._tokens("training"), head=False)
        memory = target.machine.start_mb + target.weights_mb + 200
        return Cost(target.start + seconds + disk * MB / HOST.disk_bytes, memory, disk, self.gpus(model))

    def _learning(self, model: str, weights: float, tokens: float, steps: float, draft: DraftConfig) -> float:
        """Return the seconds in which weights learn from response tokens, over some optimiser steps."""
        machine = self._target(model).machine
        work = 6 * weights * tokens * draft.ttt_steps / machine.training_flops
        if draft.features == "online":
            prompt = self._prompt("training") / self.study.corpus.training.max_new_tokens
            work += self._target(model).passes(steps, tokens * (1 + prompt), head=False)
        return (work + steps * draft.ttt_steps * machine.step_seconds) / draft.processes

    def _training(
        self, model: str, draft: DraftConfig, weights: float, used: float, layers: int, share: float = 1
    ) -> Cost:
        """Return what a training of some weights on some layers takes; a token goes through `used` ones at a step."""
        target, answer = self._target(model), self.study.corpus.training.max_new_tokens
        steps = draft.steps if draft.tokens is None else draft.tokens / answer / draft.sequences_per_step
        tokens = steps * draft.sequences_per_step * answer
        stored = weights * 4 / MB
        at_once = draft.sequences_per_pass or math.ceil(draft.sequences_per_step / draft.processes)
        logits = 3 * draft.ttt_steps * at_once * answer * draft.vocabulary * 4 / MB
        mapped = 0 if draft.features == "online" else min(layers * self._feature_mb(model), HOST.mapped_mb)
        memory = target.machine.start_mb + target.weights_mb + 4 * stored + logits + mapped
        return Cost(
            target.start + share * self._learning(model, used, tokens, steps, draft),
            memory * draft.processes,
            stored,
            draft.processes * self.gpus(model),
            6 * stored,
        )

    def _train_draft(self, wildcards: Mapping[str, str]) -> Cost:
        head = HeadName.parse(wildcards["head"])
        share = head.percent / 100 if head.start else 1
        return self._train_head(wildcards["model"], len(head.layers), share, self.study.draft)

    def _continue_draft(self, wildcards: Mapping[str, str]) -> Cost:
        online = self.study.draft.model_copy(update={"features": "online"})
        return self._train_head(wildcards["model"], _layers_read(""), int(wildcards["percent"]) / 100, online)

    def _train_head(self, model: str, k: int, share: float, draft: DraftConfig) -> Cost:
        """Train a head of k layers for a share of a whole training."""
        weights = self._head_weights(model, k)
        return self._training(model, draft, weights, weights, k + 1, share)

    def _train_medusa(self, wildcards: Mapping[str, str]) -> Cost:
        model, size = wildcards["model"], self.size(wildcards["model"])
        draft = train_medusa(self.study, model, RivalName.parse(wildcards["rival"]).label).draft
        used = size.width * (size.width + min(draft.vocabulary, size.vocabulary))
        return self._training(model, draft, draft.ttt_steps * size.width**2, used, 1)

    def _screen_layers(self, wildcards: Mapping[str, str]) -> Cost:
        model, screen, draft = wildcards["model"], self.study.screen, self.study.draft
        assert screen is not None
        target, states = self._target(model), self.size(model).states
        singles = len(screen.layers) if screen.layers is not None else states - 1
        candidates = singles + len(most_sets(self.study, model))
        answer = self.study.corpus.training.max_new_tokens
        learnt = budget = 0.0
        for rung in plan_rungs(candidates, screen.budget, screen.keep):
            trained = max(rung.candidates, singles if screen.whole_curve else 0)
            learnt, budget = learnt + trained * (rung.budget - budget), rung.budget
        steps = learnt / answer / (screen.sequences_per_step or draft.sequences_per_step)
        alone = draft.model_copy(update={"processes": 1, "features": "cached"})
        seen = min(1, (budget / answer + screen.judged_prompts) / self.study.corpus.training.count)
        features = seen * states * self._feature_mb(model)
        seconds = target.passes(seen, seen * self._tokens("training"), head=False) + features * MB / HOST.disk_bytes
        seconds += self._learning(model, self._head_weights(model, 2), learnt, steps, alone)
        weights = self._head_weights(model, 2) * 4 / MB
        memory = target.machine.start_mb + target.weights_mb + 8 * weights + min(features / 2, HOST.mapped_mb)
        return Cost(target.start + seconds, memory, 0.1, self.gpus(model), features + 3 * candidates * weights)

    def _import_draft(self, wildcards: Mapping[str, str]) -> Cost:
        model = wildcards["model"]
        size, weights = self.size(model), self._head_weights(model, 3) * 4 / MB
        read = weights + size.vocabulary * size.width * 4 / MB  # published heads bring an embedding, too
        return Cost(PROCESSOR.start_seconds + read * MB / HOST.network_bytes, PROCESSOR.start_mb + 2 * read, weights)

    # ------------------------------------------------------------ decoding

    def _turns(self, per_category: int | None) -> float:
        source = self.study.acceptance.questions.source
        return (6 * per_category if per_category else known.QUESTIONS[source]) * known.TURNS

    def _asked(self) -> float:
        """Return the turns of a counted run."""
        each = self.study.acceptance.per_subcategory
        return self._turns(self.study.acceptance.per_category) if each is None else 13 * each * known.TURNS

    def _plain(self, model: str, turns: float, new_tokens: int) -> float:
        """Return the seconds of plain decoding, prompts included."""
        target, prompt = self._target(model), known.QUESTION_TOKENS[self.study.acceptance.questions.source]
        return target.passes(turns, turns * prompt) + target.passes(turns * new_tokens, turns * new_tokens)

    def _speculative(self, model: str, head: str, turns: float, new_tokens: int, nodes: int) -> float:
        """Return the seconds of drafting and verifying, prompts included."""
        target, acceptance = self._target(model), self.study.acceptance
        prompt = known.QUESTION_TOKENS[acceptance.questions.source]
        cycles = turns * new_tokens / known.TOKENS_A_CYCLE
        weights = self._head_weights(model, _layers_read(head))
        drafted = cycles * acceptance.depth * acceptance.top_k
        drafting = 2 * weights * drafted / target.machine.forward_flops
        drafting += cycles * acceptance.depth * 4 * target.machine.layer_seconds
        return target.passes(turns, turns * prompt) + target.passes(cycles, cycles * nodes) + drafting

    def _decoding(self, model: str, seconds: float, head_mb: float = 0, nodes: int = 1) -> Cost:
        """Return what decoding takes, plain or with a drafter of some weights and nodes in the target's cache."""
        target = self._target(model)
        tokens = nodes + self.study.acceptance.max_new_tokens + max(known.QUESTION_TOKENS.values())
        memory = target.machine.start_mb + target.weights_mb + 2 * target.keys_mb(tokens) + head_mb
        return Cost(target.start + seconds, memory, HOST.run_mb, self.gpus(model))

    def _decode_baseline(self, wildcards: Mapping[str, str]) -> Cost:
        acceptance, model = self.study.acceptance, wildcards["model"]
        seconds = self._plain(model, self._asked() / acceptance.shards, acceptance.max_new_tokens)
        twice = acceptance.check_generate and wildcards["temperature"] == "0"
        return self._decoding(model, seconds * (2 if twice else 1))

    def _measure_acceptance(self, wildcards: Mapping[str, str]) -> Cost:
        acceptance, model = self.study.acceptance, wildcards["model"]
        turns, nodes = self._asked() / acceptance.shards, ShapeName.parse(str(wildcards["nodes"])).nodes
        seconds = self._speculative(model, wildcards["head"], turns, acceptance.max_new_tokens, nodes)
        return self._decoding(model, seconds, self._head_weights(model, 3) * 4 / MB, nodes)

    def _measure_speed(self, wildcards: Mapping[str, str]) -> Cost:
        speed, model = self.study.speed, wildcards["model"]
        turns, nodes = self._turns(speed.per_category), ShapeName.parse(str(wildcards["nodes"])).nodes
        seconds = self._plain(model, turns, speed.max_new_tokens)
        seconds += self._speculative(model, wildcards["head"], turns, speed.max_new_tokens, nodes)
        return self._decoding(model, seconds, self._head_weights(model, 3) * 4 / MB, nodes)

    def _measure_rival(self, wildcards: Mapping[str, str]) -> Cost:
        acceptance, model = self.study.acceptance, wildcards["model"]
        jobs = rival_jobs(RivalName.parse(wildcards["rival"]).kind, acceptance.shards)
        plain = self._plain(model, self._asked() / jobs, acceptance.max_new_tokens)
        return self._without_head(wildcards, known.RIVAL_PASSES * plain)

    def _without_head(self, wildcards: Mapping[str, str], seconds: float) -> Cost:
        """Return what decoding with a drafter takes that needs no head, but may have weights of its own."""
        model, name = wildcards["model"], RivalName.parse(wildcards["rival"])
        config = self.study.rival(name.label)
        weights = config.draft_length * self.size(model).width ** 2 if "weights" in rival_needs(name.kind) else 0
        return self._decoding(model, seconds, weights * 4 / MB, config.nodes)

    def skip_search(self, rival: str) -> SkipSearch:
        """Return how layers to skip are searched for a drafter's run.

        Raises:
            UserError: Its options do not fit.
        """
        label = RivalName.parse(rival).label
        config = self.study.rival(label)
        options = {key: value for key, value in config.options.items() if key in SkipSearch.model_fields}
        return checked_options(f"rivals.{label}", SkipSearch, options)

    def _search_skips(self, wildcards: Mapping[str, str]) -> Cost:
        settings, model = self.skip_search(wildcards["rival"]), wildcards["model"]
        plain = self._plain(model, settings.trials * settings.prompts, settings.new_tokens)
        return self._without_head(wildcards, known.SEARCH_PASSES * plain)

    def _time_rival(self, wildcards: Mapping[str, str]) -> Cost:
        speed, model = self.study.speed, wildcards["model"]
        plain = self._plain(model, self._turns(speed.per_category), speed.max_new_tokens)
        return self._without_head(wildcards, (1 + known.RIVAL_PASSES) * plain)

    # ------------------------------------------------------------ pages

    def _summarise_model(self, wildcards: Mapping[str, str]) -> Cost:
        return Cost(HOST.page_seconds, HOST.start_mb, 2)

    def _page(self, wildcards: Mapping[str, str]) -> Cost:
        models = len(self.study.study.models)
        return Cost(HOST.start_seconds + models * HOST.page_seconds, 2 * HOST.start_mb + 20 * models, 10 * models)

    _aggregate_study = _render_report = _render_layers = _page
