"""What models are made for and take in, by their configurations."""

from typing import Any

import pytest

from models_catalog.inspect import hf_use, mistral


@pytest.mark.parametrize(
    ("config", "marks", "purpose"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {}, "generate"),
        ({"architectures": ["Qwen2ForRewardModel"]}, {}, "reward"),
        ({"architectures": ["Qwen2ForProcessRewardModel"]}, {}, "reward"),
        ({"architectures": ["BertForMaskedLM"]}, {}, "fill_mask"),
        ({"architectures": ["BertForMaskedLM"]}, {"sentence_embedding": True}, "embed"),
        ({"architectures": ["BertForTokenClassification"]}, {}, "classify_tokens"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 5}, {}, "classify"),
        ({"architectures": ["BertForSequenceClassification"]}, {}, "classify"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "x"}}, {}, "rerank"),
        ({"architectures": ["BertForSequenceClassification"]}, {"cross_encoder": True}, "rerank"),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"cross_encoder": True}, "rerank"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, {}, "translate"),
        ({"architectures": ["T5EncoderModel"], "model_type": "t5"}, {}, "embed"),
        ({"architectures": ["Wav2Vec2ForCTC"], "model_type": "wav2vec2"}, {}, "transcribe"),
        ({"model_type": "bert"}, {"sentence_embedding": True}, "embed"),
        ({"architectures": ["WhatIsThis"]}, {}, ""),
    ],
)
def test_purposes(config: dict[str, Any], marks: dict[str, bool], purpose: str) -> None:
    assert hf_use.purpose(config, **{"sentence_embedding": False, **marks}) == purpose


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        ({}, ["text"]),
        ({"vision_config": {"depth": 1}}, ["text", "image"]),
        ({"vision_config": {}}, ["text"]),
        ({"vision_config": {"depth": 1}, "video_token_id": 7}, ["text", "image", "video"]),
        ({"audio_config": {"d_model": 1}}, ["text", "audio"]),
        ({"thinker_config": {"vision_config": {"a": 1}, "audio_config": {"a": 1}}}, ["text", "image", "audio"]),
    ],
)
def test_inputs(config: dict[str, Any], inputs: list[str]) -> None:
    assert hf_use.inputs(config, "generate") == inputs


def test_mistrals_own_form() -> None:
    moe = {"num_experts": 128, "num_experts_per_tok": 4, "num_shared_experts": 1, "expert_hidden_dim": 4096}
    large = mistral.config_of({"dim": 7168, "n_layers": 4, "moe": moe, "sliding_window": [None, 4096]})
    assert (large["architectures"], large["model_type"]) == (["MistralLarge3ForCausalLM"], "deepseek_v3")
    assert (large["hidden_size"], large["num_local_experts"], large["moe_intermediate_size"]) == (7168, 128, 4096)
    assert large["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert large["sliding_window"] == 4096
    told = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    yarn = {"factor": 16, "original_max_position_embeddings": 16384}
    small = mistral.config_of(
        {"dim": 1, "quantization": told, "yarn": yarn, "multimodal": {"whisper_model_args": {"a": 1}}}
    )
    assert small["quantization_config"] == {"quant_method": "fp8"}
    assert small["rope_scaling"]["factor"] == 16
    assert small["architectures"] == ["VoxtralForConditionalGeneration"]
    assert small["max_position_embeddings"] == 128_000
