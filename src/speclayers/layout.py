"""Where everything under results/ lies, defined once for rules and scripts.

Every method takes names or Snakemake wildcards such as "{model}", so one definition serves both.
"""

from __future__ import annotations

from dataclasses import dataclass

RESULTS = "results"

GEOMETRY_TABLES = (
    *("entropy", "cka", "gram", "turning", "filter_effect", "convergence", "lens"),
    *("filter_sweep", "filter_sets"),
)
SPLITS = ("calibration", "training")
SUMMARY_TABLES = (
    *(f"geometry_{name}" for name in GEOMETRY_TABLES),
    *("selections", "screening", "heads", "training", "turns", "cycles", "speed", "runs", "skipped_questions"),
)


@dataclass(frozen=True)
class Layout:
    """The folders of one study.

    Args:
        study: Name of the study.
        results: Root of all results.
    """

    study: str
    results: str = RESULTS

    def target(self, model: str) -> str:
        """Folder of a fetched model, shared by all studies."""
        return f"{self.results}/models/{model}"

    def manifest(self, model: str) -> str:
        """What the fetched model is: source, hashes, sizes."""
        return f"{self.target(model)}/manifest.json"

    def teacher(self, model: str) -> str:
        """Teacher's responses that a trained model learns from."""
        return f"{self.results}/models/{model}.teacher.parquet"

    @property
    def downloads(self) -> str:
        """Folder of downloaded question files, shared by all studies."""
        return f"{self.results}/downloads"

    @property
    def root(self) -> str:
        """Folder of the study."""
        return f"{self.results}/{self.study}"

    def model(self, model: str) -> str:
        """Folder of one model's results in this study."""
        return f"{self.root}/{model}"

    def questions(self) -> str:
        """Benchmark questions that this study asks."""
        return f"{self.root}/questions.jsonl"

    def corpus(self, model: str, split: str) -> str:
        """Responses of the target to one split's prompts."""
        return f"{self.model(model)}/corpus/{split}.parquet"

    def activations(self, model: str) -> str:
        """Manifest of the activation dump; its parts lie beside it."""
        return f"{self.model(model)}/activations/manifest.json"

    def geometry(self, model: str, table: str) -> str:
        """One of GEOMETRY_TABLES."""
        return f"{self.model(model)}/geometry/{table}.parquet"

    def gram_shard(self, model: str, shard: str | int) -> str:
        """One job's share of the Gram inner products, where several jobs share them."""
        return f"{self.model(model)}/geometry/shards/{shard}.parquet"

    def selections(self, model: str) -> str:
        """Which layers every selector chose."""
        return f"{self.model(model)}/selection/selections.parquet"

    def selection_trace(self, model: str) -> str:
        """Every step of every selector, as JSON."""
        return f"{self.model(model)}/selection/trace.json"

    def heads(self, model: str) -> str:
        """Names of the heads to train: what the workflow reads after the checkpoint."""
        return f"{self.model(model)}/selection/heads.json"

    def screening(self, model: str) -> str:
        """How the candidates of a screening drafted, rung by rung."""
        return f"{self.model(model)}/screening/screening.parquet"

    def screened(self, model: str) -> str:
        """The layer set that won the screening: what the workflow reads after its checkpoint."""
        return f"{self.model(model)}/screening/winner.json"

    def recommendation(self, model: str) -> str:
        """What the selections recommend, with the layer ids of each serving engine, as JSON."""
        return f"{self.model(model)}/selection/recommendation.json"

    def features(self, model: str, layers: str) -> str:
        """What one pass of the target stored of some layers; one file a layer lies beside it."""
        return f"{self.model(model)}/features/{layers}.json"

    def head(self, model: str, head: str, file: str) -> str:
        """A file of a trained head: model.safetensors, config.json or training.parquet."""
        return f"{self.model(model)}/heads/{head}/{file}"

    def exports(self, model: str) -> str:
        """Folder of a model's exported heads."""
        return f"{self.model(model)}/exports"

    def exported(self, model: str, head: str, engine: str) -> str:
        """A head's folder for an engine."""
        return f"{self.exports(model)}/{head}/{engine}"

    def recommended_head(self, model: str, suffix: str = "json") -> str:
        """The head to export, and which engines serve it: read after its checkpoint; txt: in words."""
        return f"{self.exports(model)}/recommended.{suffix}"

    def preflight(self, model: str) -> str:
        """The same words, written when all folders are there."""
        return f"{self.exports(model)}/preflight.txt"

    def baseline(self, model: str, temperature: str) -> str:
        """Plain decoding's answers."""
        return f"{self.model(model)}/baseline/T{temperature}.parquet"

    def baseline_shard(self, model: str, temperature: str, shard: str | int) -> str:
        """One job's range of plain decoding's answers, where several jobs share the questions."""
        return f"{self.model(model)}/baseline/shards/T{temperature}/{shard}.parquet"

    def acceptance(self, model: str, head: str, temperature: str, nodes: str | int, table: str) -> str:
        """Table `cycles` or `turns` of an acceptance run."""
        return f"{self.model(model)}/acceptance/{head}/T{temperature}-n{nodes}/{table}.parquet"

    def acceptance_shard(
        self, model: str, head: str, temperature: str, nodes: str | int, table: str, shard: str | int
    ) -> str:
        """One job's range of an acceptance run's table, where several jobs share the questions."""
        folder = f"{self.model(model)}/acceptance/{head}/T{temperature}-n{nodes}"
        return f"{folder}/shards/{shard}/{table}.parquet"

    def speed(self, model: str, head: str, temperature: str, nodes: str | int) -> str:
        """Table of a timed run."""
        return f"{self.model(model)}/speed/{head}/T{temperature}-n{nodes}.parquet"

    def rival(self, model: str, rival: str, file: str) -> str:
        """What is made first for a drafter without a head: a search's skipped.json, or files as of a trained head."""
        return f"{self.model(model)}/rivals/{rival}/{file}"

    def summary(self, model: str, table: str) -> str:
        """One of SUMMARY_TABLES: all results of one model, united."""
        return f"{self.model(model)}/summary/{table}.parquet"

    @property
    def fingerprints(self) -> str:
        """What the fingerprints of all runs were made of, to tell what changed."""
        return f"{self.root}/fingerprints.json"

    @property
    def database(self) -> str:
        """The study's DuckDB file."""
        return f"{self.root}/study.duckdb"

    @property
    def report(self) -> str:
        """The study's page."""
        return f"{self.root}/report.html"

    @property
    def summary_page(self) -> str:
        """The page's answer, main comparison and figures in Markdown."""
        return f"{self.root}/summary.md"

    def comparison(self, suffix: str) -> str:
        """The main comparison as a table of LaTeX (tex) or as CSV (csv)."""
        return f"{self.root}/comparison.{suffix}"

    @property
    def layers_page(self) -> str:
        """The page of the layers alone, which needs no training."""
        return f"{self.root}/layers.html"

    @property
    def answer(self) -> str:
        """The answer in three lines of text."""
        return f"{self.root}/answer.txt"

    @property
    def figures(self) -> str:
        """Folder of the figures as SVG and PNG."""
        return f"{self.root}/figures"

    @property
    def tables(self) -> str:
        """Folder of the main tables as Parquet and CSV."""
        return f"{self.root}/tables"

    def work(self, model: str, stage: str) -> str:
        """Folder of checkpoints and shards that let a killed job continue; never a declared output."""
        return f"{self.model(model)}/work/{stage}"

    def model_work(self, model: str, stage: str) -> str:
        """The same for a trained model, which is no study's own: its jobs must not name one."""
        return f"{self.results}/models/.work/{model}/{stage}"

    def log(self, rule: str, *wildcards: str) -> str:
        """Log of a rule's job."""
        return "/".join(("logs", self.study, rule, *(f"{w}" for w in wildcards or ("all",)))) + ".log"

    def inputs(self, rule: str, *wildcards: str) -> str:
        """What a job that unites results was told to read: an option of its script a line."""
        return "/".join((self.root, "inputs", rule, *(wildcards or ("all",)))) + ".txt"

    def benchmark(self, rule: str, *wildcards: str) -> str:
        """What Snakemake measured of a job: time, memory, processor use."""
        return "/".join((self.root, "benchmarks", rule, *(wildcards or ("all",)))) + ".jsonl"
