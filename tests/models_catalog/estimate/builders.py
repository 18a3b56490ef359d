"""Configurations and questions for the tests of the estimate."""

import json
from functools import cache
from typing import Any

from models_catalog.estimate import Gpu, Options, Plan, estimate
from models_catalog.estimate.case import Case, case_of
from models_catalog.estimate.kv_cache import Cache, cache_of
from models_catalog.estimate.schemes import PLAIN, scheme_of
from models_catalog.estimate.versions import parse
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.reports import DATA

H100 = Gpu("H100-80GB-HBM3", 79.19)
SMOL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
GEMMA_4: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "vocab_size": 262144,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 10,
    },
}


@cache
def config(name: str) -> dict[str, Any]:
    """The configuration of a model that reports name."""
    found: dict[str, Any] = json.loads((DATA / "configs" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def facts(name: str, **changes: Any) -> ModelFacts:
    return facts_of_config({**config(name), **changes})


def plan(model: str | ModelFacts, version: str = "0.19.0", gpu: Gpu = H100, **options: Any) -> Plan:
    known = facts(model) if isinstance(model, str) else model
    return estimate(known, Options(**options), gpu, version)


def case(model: ModelFacts, version: str = "0.19.0", gpu: Gpu = H100, **options: Any) -> Case:
    found, asked = parse(version), Options(**options)
    assert found is not None
    assert model.geometry is not None
    scheme = scheme_of(model, asked.scheme) or PLAIN
    return case_of(model.geometry, scheme, asked, gpu, found, longest=model.context_length, family=model.model_type)


def cache_layout(model: ModelFacts, version: str = "0.19.0", gpu: Gpu = H100, **options: Any) -> Cache:
    return cache_of(case(model, version, gpu, **options), 0)


def weights_of(found: Plan) -> float:
    return found.ranks[0].weights.value or 0.0


def cache_of_plan(found: Plan) -> float:
    return found.ranks[0].kv.value or 0.0


def codes(found: Plan) -> list[str]:
    return [reason.code for reason in found.reasons]
