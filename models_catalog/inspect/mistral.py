"""Mistral's own form of a model: params.json, consolidated.safetensors, tekken.json. Pure: dicts in, dicts out."""

from __future__ import annotations

from typing import Any

from models_catalog.inspect.reading import obj, whole

PARAMS = "params.json"
WEIGHTS = ("consolidated", ".safetensors")
RENAMED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "tied_embeddings": "tie_word_embeddings",
}
DEFAULT_CONTEXT = 128_000  # of vLLM's reader, where the file tells none


def config_of(params: dict[str, Any]) -> dict[str, Any]:
    """The same as a config.json would say, in its words. Unknown keys stay."""
    told = {RENAMED.get(key, key): value for key, value in params.items()}
    told.setdefault("max_position_embeddings", DEFAULT_CONTEXT)
    told |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    windows = told.get("sliding_window")
    layers = whole(told.get("num_hidden_layers"))
    if isinstance(windows, list) and windows and layers and layers <= 1000:
        kinds = ["sliding_attention" if windows[n % len(windows)] else "full_attention" for n in range(layers)]
        told |= {"layer_types": kinds, "sliding_window": next((w for w in windows if w), None)}
    if moe := obj(params.get("moe")):
        told |= _experts(moe, told)
    if yarn := obj(params.get("yarn")):
        told["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": yarn.get("factor"),
            "original_max_position_embeddings": yarn.get("original_max_position_embeddings"),
        }
    if quantisation := obj(params.get("quantization")):
        fp8 = quantisation.get("qformat_weight") == "fp8_e4m3"
        told["quantization_config"] = {"quant_method": "fp8"} if fp8 else quantisation
    if obj(params.get("vision_encoder")) or obj(obj(params.get("multimodal")).get("vision_encoder_args")):
        told["architectures"] = ["PixtralForConditionalGeneration"]
    elif obj(obj(params.get("multimodal")).get("whisper_model_args")):
        told["architectures"] = ["VoxtralForConditionalGeneration"]
    return told


def _experts(moe: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    found = {
        "num_local_experts": moe.get("num_experts"),
        "num_experts_per_tok": moe.get("num_experts_per_tok"),
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
    }
    if whole(moe.get("num_shared_experts")):
        found |= {
            "n_shared_experts": moe.get("num_shared_experts"),
            "moe_intermediate_size": moe.get("expert_hidden_dim"),
            "first_k_dense_replace": moe.get("first_k_dense_replace"),
            "model_type": "deepseek_v3",
            "architectures": ["MistralLarge3ForCausalLM"],
        }
    return {key: value for key, value in found.items() if value is not None}
