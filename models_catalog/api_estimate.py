"""What a model would need, for programs: the memory estimate of one form of the catalog, or of a config.json."""

import json
from typing import Any, Literal

from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Field, Schema
from pydantic import ConfigDict

from models_catalog.api_shelf import router
from models_catalog.estimate import try_estimate
from models_catalog.estimate.specs import BadSpec, read_spec
from models_catalog.estimate.words import told
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from models_catalog.models import Artifact
from panel.core.api import Token, answers
from panel.core.errors import Invalid, NotFound

__all__ = ["router"]

TEXT, MOST = 200, 10_000_000
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
EXAMPLE = {"config": LLAMA, "engine_version": "0.32.0", "gpu": "L40S", "max_model_len": 16384}


class EstimateIn(Schema):
    """The keys of a line of `manage.py estimate --batch`. What is left out or null is the engine's own default."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    artifact_id: int | None = Field(None, ge=1, le=2**31 - 1, description=_("A form of a model of the catalog."))
    config: dict[str, Any] | None = Field(None, description=_("Instead of it, the object of a config.json."))
    engine: Literal["vllm", "sglang", "llama.cpp", "ollama"] = "vllm"
    engine_version: str = Field("", max_length=60, description=_("Empty: it holds for all versions since 0.11."))
    gpu: str = Field("", max_length=TEXT, description=_("Name of the GPU; cpu: none."))
    gpu_total_gib: float | None = Field(None, gt=0, le=1e6, description=_("Its measured memory; null: by its name."))
    gpu_free_gib: float | None = Field(None, ge=0, le=1e6, description=_("What is free of it now; null: all."))
    tp: int | None = Field(None, ge=1, le=1024, description=_("GPUs that share each layer."))
    pp: int | None = Field(None, ge=1, le=64, description=_("Stages of layers, one after the other."))
    dp: int | None = Field(None, ge=1, le=1024, description=_("Replicas that share the experts among them."))
    dcp: int | None = Field(None, ge=1, le=1024)
    util: float | None = Field(None, gt=0, le=1, description=_("Share of the GPU's memory."))
    max_model_len: int | None = Field(None, ge=1, le=MOST, description=_("Tokens of the longest request."))
    max_num_seqs: int | None = Field(None, ge=1, le=MOST)
    max_num_batched_tokens: int | None = Field(None, ge=1, le=MOST)
    kv_dtype: str | None = Field(None, max_length=TEXT)
    kv_value_dtype: str | None = Field(None, max_length=TEXT)
    kv_gib: float | None = Field(None, gt=0, le=1e6, description=_("Start from a known size of the KV cache."))
    quant: str | None = Field(None, max_length=TEXT)
    enforce_eager: bool | None = None
    block_size: int | None = Field(None, ge=1, le=MOST)
    max_loras: int | None = Field(None, ge=0, le=MOST)
    max_lora_rank: int | None = Field(None, ge=0, le=MOST)
    num_speculative_tokens: int | None = Field(None, ge=0, le=1000)
    draft_full_layers: int | None = Field(None, ge=0, le=1000)
    draft_sliding_layers: int | None = Field(None, ge=0, le=1000)
    draft_window: int | None = Field(None, ge=0, le=MOST)
    mamba_align: bool | None = None
    text_only: bool | None = None
    n_gpu_layers: int | None = Field(None, ge=0, le=1000)
    ubatch_size: int | None = Field(None, ge=1, le=MOST)
    parallel: int | None = Field(None, ge=1, le=MOST)
    mem_fraction_static: float | None = Field(None, gt=0, le=1)
    flash_attention: bool | None = None
    hybrid_cache: bool | None = None


class SaidOut(Schema):
    """A reason, or where a number comes from: for programs, and as a sentence."""

    code: str
    params: dict[str, Any]
    text: str


class RankOut(Schema):
    """One stage of a pipeline; GiB of each of its GPUs."""

    stage: int
    layers: int
    weights_gib: float | None
    activation_gib: float | None
    overhead_gib: float | None
    graphs_gib: float | None
    kv_gib: float | None


class EstimateOut(Schema):
    """GiB of each GPU, of a pipeline those of the first stage. Null: it cannot be said."""

    weights_gib: float | None = None
    activation_gib: float | None = None
    overhead_gib: float | None = None
    graphs_gib: float | None = None
    kv_gib: float | None = None
    kv_tokens: float | None
    concurrency: float | None = Field(description=_("Requests of `context` tokens at the same time."))
    max_len: float | None = Field(description=_("Tokens of the longest single request."))
    ranges: dict[str, list[float | None]] = Field(description=_("What each number surely lies between."))
    sources: dict[str, SaidOut] = Field(description=_("Where each number comes from."))
    engine: str
    engine_version: str
    context: int | None
    need_gib: float | None = Field(description=_("What each GPU must have free."))
    verdict: Literal["fits", "tight", "does_not_fit", "unknown"]
    reasons: list[SaidOut]
    ranks: list[RankOut] = Field([], description=_("The stages of a pipeline, where there are several."))


@router.post(
    "/estimate",
    response=answers({200: EstimateOut}, 404, 413),
    auth=Token("models.view", reads=True),
    summary=_("What a model would need on a GPU"),
    description=_(
        "Memory and what for, requests at once, the longest request, and whether it fits: as `manage.py estimate` says"
        " it. Name a form of the catalog or send a config.json. Nothing is written and no host is asked; what is free"
        " now, the plan of a deployment says."
    ),
)
def estimate_need(request: HttpRequest, body: EstimateIn) -> Any:
    return answer(_facts(body), body.model_dump(exclude={"artifact_id", "config"}))


def answer(facts: ModelFacts, values: dict[str, Any]) -> dict[str, Any]:
    """Raises Invalid for values that mean nothing together."""
    try:
        spec = read_spec(values)
    except BadSpec as exc:
        raise Invalid({exc.key: gettext("This value is not possible.")}) from exc
    plan = try_estimate(facts, spec.options, spec.gpu, spec.engine_version)
    found = told(plan, gettext) if plan is not None else None
    if found is None or not _is_finite(found):
        raise Invalid({"config": gettext("No model has such values, so nothing can be estimated.")})
    return found


def _is_finite(found: dict[str, Any]) -> bool:
    """Absurd sizes may come to numbers that JSON has no word for."""
    try:
        json.dumps(found, allow_nan=False)
    except ValueError:
        return False
    return True


def _facts(body: EstimateIn) -> ModelFacts:
    """Raises Invalid where not just one of both is named, NotFound."""
    if (body.artifact_id is None) == (body.config is None):
        raise Invalid({"config": gettext("Give either artifact_id or config.")})
    if body.config is not None:
        return facts_of_config(body.config)
    found = Artifact.objects.filter(pk=body.artifact_id).values_list("facts", flat=True).first()
    if found is None:
        raise NotFound
    return ModelFacts.from_dict(found)
