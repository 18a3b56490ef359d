"""The shape of a model from config.json and GGUF headers: old and new spellings, and how tensors are packed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from models_catalog.inspect.config_only import facts_of_config
from models_catalog.inspect.hf_geometry import geometry
from models_catalog.inspect.hf_packing import packing
from models_catalog.inspect.one import facts_at
from models_catalog.inspect.reading import Unusable
from tests.models_catalog.builders import GGUF_KEYS, GGUF_TENSORS, LLAMA, gguf_bytes

BASE: dict[str, Any] = LLAMA | {"num_hidden_layers": 12, "intermediate_size": 64, "head_dim": 4}


def kinds(**changes: Any) -> Counter[str]:
    found = geometry(BASE | changes)
    assert found is not None
    return Counter(found.layers)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"full": 12}),
        ({"model_type": "gemma2", "sliding_window": 64}, {"sliding": 6, "full": 6}),
        ({"model_type": "gemma3_text", "sliding_window": 64}, {"sliding": 10, "full": 2}),
        ({"model_type": "cohere2", "sliding_window": 64, "sliding_window_pattern": 4}, {"sliding": 9, "full": 3}),
        ({"model_type": "mistral", "sliding_window": 64}, {"sliding": 12}),
        ({"model_type": "mistral", "sliding_window": None}, {"full": 12}),
        ({"model_type": "mistral", "sliding_window": 2048}, {"full": 12}),  # as long as the context: no window
        ({"model_type": "qwen2", "sliding_window": 64}, {"full": 12}),  # off unless it is switched on
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, {"sliding": 12}),
        ({"model_type": "llama4_text", "attention_chunk_size": 64}, {"chunked": 9, "full": 3}),
        ({"full_attention_interval": 4}, {"linear": 9, "full": 3}),
        ({"hybrid_override_pattern": "M-M*-M-M*-ME"}, {"mamba": 5, "full": 2, "mlp": 5}),
        ({"layer_types": ["full_attention"] * 12}, {"full": 12}),
        ({"layer_types": ["something_new"] * 12}, {"full": 12}),
    ],
)
def test_kinds_of_layers(changes: dict[str, Any], expected: dict[str, int]) -> None:
    assert kinds(**changes) == expected


def test_what_classes_of_models_leave_out() -> None:
    gemma, llama = (geometry({k: v for k, v in BASE.items() if k != "tie_word_embeddings"} | {"model_type": kind})
                    for kind in ("gemma2", "llama"))  # fmt: skip
    assert gemma is not None
    assert llama is not None
    assert (gemma.tied, llama.tied) == (True, False)
    opt = geometry(BASE | {"model_type": "opt", "ffn_dim": 40})
    assert opt is not None
    assert (opt.mlp_matrices, opt.rope_rows, opt.rope_width) == (2, 2048, opt.hidden)  # learned positions


def test_an_architecture_that_is_not_known_is_marked() -> None:
    assert not geometry(BASE | {"model_type": "novel"}).known
    assert geometry({"model_type": "llama"}) is None
    assert geometry(BASE | {"num_hidden_layers": 10**6}) is None


def test_experts_are_found_under_all_their_names() -> None:
    deepseek = geometry(BASE | {
        "model_type": "deepseek_v3", "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 8,
        "n_shared_experts": 2, "first_k_dense_replace": 1,
    })  # fmt: skip
    assert deepseek is not None
    assert (deepseek.experts, deepseek.expert_width, deepseek.shared_width, deepseek.dense_layers) == (64, 8, 16, 1)
    mixtral = geometry(BASE | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert mixtral is not None
    assert (mixtral.experts, mixtral.experts_used, mixtral.expert_width) == (8, 2, 64)


def test_a_vision_tower_is_counted_from_its_widths() -> None:
    siglip = {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "image_size": 896,
        "patch_size": 14,
    }
    found = geometry({"model_type": "gemma3", "architectures": ["A"], "text_config": BASE, "vision_config": siglip})
    assert found is not None
    assert found.vision_parameters == pytest.approx(412e6, rel=0.02)
    assert found.image_tokens == 256


@pytest.mark.parametrize(
    ("told", "scheme"),
    [
        ({}, ""),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "awq-int4-g128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4-g32"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq-int8-g128"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, ""),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block128"),
        ({"quant_method": "fp8"}, "fp8-tensor"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes-4bit"),
        ({"quant_method": "novel"}, ""),
    ],
)
def test_how_tensors_are_packed(told: dict[str, Any], scheme: str) -> None:
    assert packing(BASE | {"quantization_config": told}, {})[0] == scheme


@pytest.mark.parametrize(
    ("weights", "scheme"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "fp8-channel"),
        ({"num_bits": 8, "type": "float", "strategy": "block"}, "fp8-block128"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, "int8-channel"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, "gptq-int4-g128"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4"),
    ],
)
def test_compressed_tensors(weights: dict[str, Any], scheme: str) -> None:
    told = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
        "ignore": ["lm_head"],
    }
    assert packing(BASE | {"quantization_config": told}, {}) == (scheme, [])


def test_parts_that_stay_in_16_bits() -> None:
    told = {"quant_method": "fp8", "modules_to_not_convert": ["re:.*self_attn.*", "model.layers.0.mlp"]}
    assert packing(BASE | {"quantization_config": told}, {})[1] == ["attention"]
    every = {"quant_method": "awq", "modules_to_not_convert": [f"model.layers.{n}.self_attn.o_proj" for n in range(12)]}
    assert packing(BASE | {"quantization_config": every}, {})[1] == ["attention"]
    facts = facts_of_config(BASE | {"quantization_config": told})
    assert (facts.weight_scheme, facts.plain_parts) == ("fp8-tensor", ["attention"])


def test_a_gguf_header_tells_the_shape(tmp_path: Path) -> None:
    keys = GGUF_KEYS | {"llama.feed_forward_length": ("u32", 128), "llama.attention.key_length": ("u32", 16)}
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(keys))
    shape = facts_at(tmp_path / "a.gguf").geometry
    assert shape is not None
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.vocab, shape.mlp_width) == (64, 4, 2, 4, 128)
    assert shape.tied
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(keys, [*GGUF_TENSORS, ("output.weight", [64, 4], 0)]))
    assert not facts_at(tmp_path).geometry.tied


def test_a_path_without_a_model_or_with_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable) as none:
        facts_at(tmp_path)
    assert none.value.problem.code == "no_model"
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes())
    with pytest.raises(Unusable) as many:
        facts_at(tmp_path)
    assert many.value.problem.code == "many_models"
