"""config.json of real models, and of shapes that the real ones do not cover."""

import json
from pathlib import Path
from typing import Any

import pytest

from models_catalog.facts import Quantisation
from models_catalog.inspect import hf_config

REAL = json.loads((Path(__file__).parent / "real_configs.json").read_text())


@pytest.mark.parametrize("name", sorted(REAL))
def test_dimensions_of_real_models(name: str) -> None:
    found = hf_config.dimensions(REAL[name]["config"])
    assert {key: found[key] for key in REAL[name]["facts"]} == REAL[name]["facts"]
    assert found["context_source"] == "config.json: max_position_embeddings"
    assert hf_config.tasks(REAL[name]["config"], sentence_embedding=False) == ["generate"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 8192, "model_max_length": 4096}, 4096),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "model_type": "gemma3_text",
                "rope_scaling": {"type": "linear", "factor": 8},
            },
            131072,
        ),
        ({"max_position_embeddings": "many"}, None),
        ({"max_position_embeddings": 10**30}, None),
        ({"max_position_embeddings": True}, None),
        ({}, None),
    ],
)
def test_context_length(config: dict[str, Any], expected: int | None) -> None:
    assert hf_config.context_length(config)[0] == expected


def test_kv_heads_of_falcon_shapes() -> None:
    assert hf_config.dimensions({"num_attention_heads": 71, "multi_query": True})["kv_heads"] == 1
    new = {"num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True}
    assert hf_config.dimensions(new)["kv_heads"] == 8


@pytest.mark.parametrize(
    ("config", "extra", "expected"),
    [
        ({}, {}, None),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, {}, ("awq", 4, "AWQ 4-bit")),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, {}, ("gptq", 8, "GPTQ 8-bit")),
        ({"quantization_config": {"quant_method": "fp8"}}, {}, ("fp8", 8, "FP8")),
        ({"quantization_config": {"quant_method": "mxfp4"}}, {}, ("mxfp4", 4, "MXFP4")),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "pack-quantized",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
                }
            },
            {},
            ("compressed-tensors", 4, "compressed-tensors pack-quantized 4-bit"),
        ),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            {},
            ("bitsandbytes", 4, "bitsandbytes 4-bit"),
        ),
        ({}, {"quantization": {"quant_algo": "NVFP4"}}, ("nvfp4", 4, "NVFP4")),
        ({}, {"bits": 4, "group_size": 128}, ("gptq", 4, "GPTQ 4-bit")),
        ({"text_config": {"quantization_config": {"quant_method": "awq", "bits": 4}}}, {}, ("awq", 4, "AWQ 4-bit")),
    ],
)
def test_quantisation(config: dict[str, Any], extra: dict[str, Any], expected: tuple[str, int, str] | None) -> None:
    found = hf_config.quantisation(config, extra)
    assert found == (expected and Quantisation(method=expected[0], bits=expected[1], label=expected[2]))


@pytest.mark.parametrize(
    ("architecture", "sentence", "expected"),
    [
        ("LlamaForCausalLM", False, ["generate"]),
        ("GPT2LMHeadModel", False, ["generate"]),
        ("Qwen2_5_VLForConditionalGeneration", False, ["generate"]),
        ("BertModel", False, ["embed"]),
        ("Qwen3ForCausalLM", True, ["embed"]),
        ("BertForSequenceClassification", False, ["score"]),
        ("WhatIsThis", False, []),
    ],
)
def test_tasks(architecture: str, sentence: bool, expected: list[str]) -> None:
    assert hf_config.tasks({"architectures": [architecture]}, sentence_embedding=sentence) == expected


def test_models_that_hear_or_translate_are_not_offered_as_text_models() -> None:
    for kind in ("whisper", "t5"):
        config = {"architectures": ["XForConditionalGeneration"], "model_type": kind}
        assert hf_config.tasks(config, sentence_embedding=False) == []


def test_hostile_values_become_nothing_or_clean_text() -> None:
    config = {
        "architectures": ["<script>alert(1)</script>\x00\ud800", 7, {}],
        "model_type": {"a": 1},
        "num_hidden_layers": -4,
        "num_attention_heads": float("inf"),
        "hidden_size": [1],
        "text_config": "no object",
    }
    assert hf_config.architectures(config) == ["<script>alert(1)</script>\ufffd"]  # text, escaped by the page
    found = hf_config.dimensions(config)
    assert all(found[key] is None for key in ("layers", "heads", "hidden_size", "context_length"))
    assert found["model_type"] == ""
