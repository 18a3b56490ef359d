"""How long a request may be, against what vLLM 0.32.0 itself derives from the same files (`_get_and_verify_max_len`)."""

from __future__ import annotations

from typing import Any

import pytest

from models_catalog.estimate.longest import longest
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.builders import facts

# What the engine said of each when it was asked for 10^9 tokens.
REAL = {
    "MiniMaxAI--MiniMax-M2.5": 196_608,
    "Qwen--Qwen2.5-7B-Instruct": 32_768,
    "Qwen--Qwen2.5-VL-7B-Instruct": 32_768,
    "Qwen--Qwen3-8B": 40_960,
    "Qwen--Qwen3-235B-A22B": 262_144,
    "Qwen--Qwen3.5-9B": 262_144,
    "deepseek-ai--DeepSeek-R1": 163_840,
    "facebook--opt-2.7b": 2_048,
    "google--gemma-2-9b-it": 8_192,
    "google--gemma-3-12b-it": 131_072,  # stretched eight times, and named as stretched
    "google--gemma-3-1b-it": 32_768,
    "ibm-granite--granite-vision-3.3-2b": 131_072,
    "llama-2-7b": 4_096,
    "meta-llama--Llama-3.1-8B-Instruct": 131_072,  # llama3 × 8, named as stretched
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 10_485_760,
    "mistralai--Mistral-Small-3.1-24B-Instruct-2503": 131_072,
    "moonshotai--Kimi-VL-A3B-Instruct": 163_840,
    "openai--gpt-oss-20b": 131_072,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def made(**values: Any) -> ModelFacts:
    return facts_of_config({**LLAMA, **values})


@pytest.mark.parametrize("name", REAL)
def test_as_the_engine_derives_it_of_real_models(name: str) -> None:
    own = longest(facts(name), "0.32.0")
    assert own is not None and (own.tokens, own.sure) == (REAL[name], True)


@pytest.mark.parametrize(
    ("values", "version", "tokens"),
    [
        ({}, "0.32.0", 4096),
        ({}, "", 4096),
        ({"max_seq_len": 2048}, "0.32.0", 2048),  # the smallest of several
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "0.32.0", 16_384),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "0.6.1", 8192),
        ({"rope_scaling": {"type": "su", "factor": 32.0}}, "0.6.1", 4096),
        ({"rope_scaling": {"type": "longrope", "factor": 32.0}}, "0.32.0", 4096),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "0.32.0", 4096),
        ({"max_position_embeddings": 32_768, "rope_scaling": YARN}, "0.31.1", 131_072),
        ({"max_position_embeddings": 32_768, "rope_scaling": YARN}, "0.32.0", 32_768),
        ({"max_position_embeddings": 32_768, "rope_scaling": YARN}, "", 131_072),  # what any version takes
        ({"max_position_embeddings": 8192, "model_max_length": 131_072}, "0.32.0", 131_072),  # Command R
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "0.32.0", 4096),
    ],
)
def test_stretched_positions(values: dict[str, Any], version: str, tokens: int) -> None:
    own = longest(made(**values), version)
    assert own is not None and (own.tokens, own.sure) == (tokens, True)


@pytest.mark.parametrize(
    "known",
    [
        made(auto_map={"AutoConfig": "configuration_own.Own"}).model_copy(update={"needs_remote_code": True}),
        made().model_copy(update={"config_format": "mistral"}),
        made().model_copy(update={"context_named": None}),  # as told by an agent before there was this field
        made(architectures=["NobodyKnowsForCausalLM"], model_type="nobody_knows"),
        made(rope_scaling={"full_attention": {"rope_type": "linear", "factor": 8.0}}),
        made(rope_scaling={"rope_type": "proportional", "factor": 4.0}),
    ],
    ids=["own-code", "mistral", "old-facts", "unknown", "by-layer", "no-factor-by-nature"],
)
def test_what_only_the_engine_knows_is_not_sure(known: ModelFacts) -> None:
    own = longest(known, "0.32.0")
    assert own is not None and not own.sure


def test_nothing_named_is_nothing_known() -> None:
    assert longest(made(max_position_embeddings=None)) is None and longest(None) is None


def test_the_source_is_where_the_number_stands() -> None:
    stretched = made(max_position_embeddings=32_768, rope_scaling=YARN)
    told = [own.source for version in ("0.19.0", "0.32.0") if (own := longest(stretched, version)) is not None]
    assert told == ["config.json: max_position_embeddings × yarn 4", "config.json: max_position_embeddings"]
