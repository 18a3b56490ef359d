"""Hugging Face folders of other kinds: packed weights, models that see, hear, embed or score, adapters, Mistral's form."""

import json
from typing import Any

from tests.models_catalog.builders import safetensors_layout, sparse
from tests.models_catalog.zoo import tensors as t
from tests.models_catalog.zoo.case import HF, Case, Make, dims, folder, named, plain, rope, write_shards
from tests.models_catalog.zoo.hf_models import BGE_M3, LLAMA31, MISTRAL, QWEN3_SMALL, WORDS, config, shape

LLAMA = HF | named("LlamaForCausalLM", "llama") | dims(32, 4096, 32, 8, 128, 128256, 131072) | rope(
    500000.0, "llama3", 8.0, 8192
)  # fmt: skip
NO_TEMPLATE: dict[str, Any] = {"chat_template": False, "template_source": "", "templates": []}
LINEAR = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)  # weights of all linear layers
REST = 8_030_261_248 - LINEAR


def packed(
    name: str, told: dict[str, Any], scheme: Any, facts: dict[str, Any], *, plain: str = "BF16", **files: Any
) -> Case:
    """Llama 3.1 8B in one of its packed forms: the same number of weights in every one of them."""
    whole = {**LLAMA31, "quantization_config": told} if told else LLAMA31
    whole = {**whole, "torch_dtype": {"BF16": "bfloat16", "F16": "float16"}[plain]}
    made = t.quantise(t.decoder(LLAMA31), scheme, plain)
    dtype = {"dtype": {"BF16": "bfloat16", "F16": "float16"}[plain]}
    return Case(name, folder(whole, made, **files), LLAMA | {"parameters": 8_030_261_248} | dtype | facts)


def quantised(method: str, bits: int, label: str, scheme: str) -> dict[str, Any]:
    told = {"method": method, "bits": bits, "label": label}
    return {"quantisation": told, "label": label, "weight_scheme": scheme}


def groups(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


def rows(per: int) -> int:
    """Numbers that helper tensors hold when each stands for `per` weights of a row."""
    return LINEAR // per


OUT = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)  # rows of all linear layers
IN = 32 * (6 * 4096 + 14336)  # columns
LAYERS = 32 * 7
BLOCKS = 32 * (2 * 32 * 32 + 2 * 8 * 32 + 3 * 112 * 32)  # of 128 by 128
PACKED = [
    packed(
        "Llama-3.1-8B-GPTQ", {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, t.gptq,
        quantised("gptq", 4, "GPTQ 4-bit", "gptq-int4-g128")
        | {"dtype_bytes": {"F16": 2 * REST + 2 * rows(128), "I32": LINEAR // 2 + rows(128) // 2 + 4 * IN}},
        plain="F16",
    ),
    packed(
        "Llama-3.1-8B-GPTQ-8bit", {"quant_method": "gptq", "bits": 8, "group_size": 128}, t.gptq8,
        quantised("gptq", 8, "GPTQ 8-bit", "gptq-int8-g128")
        | {"dtype_bytes": {"F16": 2 * REST + 2 * rows(128), "I32": LINEAR + rows(128) + 4 * IN}},
        plain="F16",
    ),
    packed(
        "Llama-3.1-8B-AWQ", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, t.awq,
        quantised("awq", 4, "AWQ 4-bit", "awq-int4-g128")
        | {"dtype_bytes": {"F16": 2 * REST + 2 * rows(128), "I32": LINEAR // 2 + rows(128) // 2}},
        plain="F16",
    ),
    packed(
        "Llama-3.1-8B-FP8-block", {"quant_method": "fp8", "weight_block_size": [128, 128]}, t.fp8_block,
        quantised("fp8", 8, "FP8", "fp8-block128")
        | {"dtype_bytes": {"BF16": 2 * REST, "F8_E4M3": LINEAR, "F32": 4 * BLOCKS}},
    ),
    packed(
        "Llama-3.1-8B-FP8-modelopt", {}, t.fp8_tensor,
        quantised("fp8", 8, "FP8", "fp8-tensor")
        | {"dtype_bytes": {"BF16": 2 * REST, "F8_E4M3": LINEAR, "F32": 8 * LAYERS}, "file_count": 6}
        | {"kv_scheme": "fp8"},
        hf_quant_config__json=json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}),
    ),
    packed(
        "Llama-3.1-8B-w4a16",
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
         "config_groups": groups(num_bits=4, type="int", strategy="group", group_size=128, symmetric=True)},
        t.packed4,
        quantised("compressed-tensors", 4, "compressed-tensors pack-quantized 4-bit", "gptq-int4-g128")
        | {"dtype_bytes": {"BF16": 2 * REST + 2 * rows(128), "I32": LINEAR // 2, "I64": 16 * LAYERS}},
    ),
    packed(
        "Llama-3.1-8B-w8a8",
        {"quant_method": "compressed-tensors", "format": "int-quantized",
         "config_groups": groups(num_bits=8, type="int", strategy="channel", symmetric=True)},
        t.int8,
        quantised("compressed-tensors", 8, "compressed-tensors int-quantized 8-bit", "int8-channel")
        | {"dtype_bytes": {"BF16": 2 * REST + 2 * OUT, "I8": LINEAR}},
    ),
    packed(
        "Llama-3.1-8B-NVFP4", {}, t.nvfp4,
        quantised("nvfp4", 4, "NVFP4", "nvfp4")
        | {"dtype_bytes": {"BF16": 2 * REST, "U8": LINEAR // 2, "F8_E4M3": rows(16), "F32": 8 * LAYERS},
           "file_count": 6},
        hf_quant_config__json=json.dumps({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}),
    ),
    packed(
        "Llama-3.1-8B-bnb-4bit", {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        t.bnb4,
        quantised("bitsandbytes", 4, "bitsandbytes 4-bit", "bitsandbytes-4bit")
        | {"dtype_bytes": {"BF16": 2 * REST, "U8": LINEAR // 2 + rows(64) + 94 * LAYERS,
                           "F32": 4 * rows(64 * 256) + 4 * (256 + 16) * LAYERS}},
    ),
    packed(
        "Llama-3.1-8B-bnb-8bit", {"quant_method": "bitsandbytes", "load_in_8bit": True}, t.bnb8,
        quantised("bitsandbytes", 8, "bitsandbytes 8-bit", "bitsandbytes-8bit")
        | {"dtype_bytes": {"BF16": 2 * REST, "I8": LINEAR, "F32": 4 * OUT, "U8": LAYERS}},
    ),
]  # fmt: skip

QWEN_VL = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "torch_dtype": "bfloat16",
    **shape(28, 3584, 28, 4, 18944, 152064, 128000), "rope_theta": 1e6, "video_token_id": 151656,
    "image_token_id": 151655, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14,
                      "spatial_merge_size": 2, "hidden_act": "silu"},
}  # fmt: skip
GEMMA_VL = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "vocab_size": 262208,
                    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240,
                    "max_position_embeddings": 131072, "sliding_window": 1024, "rope_theta": 1e6,
                    "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "image_size": 896,
                      "patch_size": 14},
}  # fmt: skip
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "torch_dtype": "float16",
    "d_model": 1280, "vocab_size": 51866, "num_hidden_layers": 32, "max_target_positions": 448,
}  # fmt: skip
RERANKER = BGE_M3 | {"architectures": ["XLMRobertaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
SENTIMENT = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "torch_dtype": "float32",
    **shape(12, 768, 12, 12, 3072, 30522, 512), "id2label": {"0": "negative", "1": "neutral", "2": "positive"},
}  # fmt: skip
TINY = {"model.embed_tokens.weight": ("BF16", [64, 16])}
TINY_FACTS = plain(64 * 16)
EMBED = QWEN3_SMALL | {"max_position_embeddings": 32768}
PARAMS: dict[str, Any] = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-5, "vocab_size": 32768, "rope_theta": 1e6, "max_position_embeddings": 32768,
}  # fmt: skip
EYES = {"hidden_size": 1024, "num_hidden_layers": 24, "image_size": 1024, "patch_size": 16}


def mistral_form(params: dict[str, Any], tensors: t.Tensors) -> Make:
    def make(path: Any) -> None:
        (path / "params.json").write_text(json.dumps(params))
        (path / "tekken.json").write_text('{"config": {}, "vocab": []}')
        write_shards(path, tensors, 1, "consolidated")

    return make


def adapter(path: Any) -> None:
    told = {"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "peft_type": "LORA", "r": 16, "lora_alpha": 32,
            "target_modules": ["v_proj", "q_proj"], "task_type": "CAUSAL_LM"}  # fmt: skip
    (path / "adapter_config.json").write_text(json.dumps(told))
    made = {f"base_model.model.model.layers.{n}.self_attn.q_proj.lora_{half}.weight": ("F32", size)
            for n in range(32) for half, size in (("A", [16, 4096]), ("B", [4096, 16]))}  # fmt: skip
    sparse(path / "adapter_model.safetensors", safetensors_layout(made))


def cut(path: Any) -> None:
    folder(LLAMA31, TINY)(path)
    (path / "model.safetensors").unlink()
    for rank in range(4):
        sparse(path / f"model-rank-{rank}-part-0.safetensors", safetensors_layout(TINY))


SPECIAL = [
    *PACKED,
    Case(
        "Llama-3.1-8B-MLX-4bit",
        folder({**LLAMA31, "quantization": {"group_size": 64, "bits": 4}}, t.quantise(t.decoder(LLAMA31), t.mlx4)),
        LLAMA | quantised("mlx", 4, "MLX 4-bit", "")
        | {"parameters": 8_030_261_248,
           "dtype_bytes": {"BF16": 2 * REST, "U32": LINEAR // 2, "F16": 4 * rows(64)}},
        ["mlx_only"],
    ),
    Case(
        "Llama-3.1-8B-lying-GPTQ",
        folder({**LLAMA31, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
               t.stored(t.decoder(LLAMA31))),
        LLAMA | quantised("gptq", 4, "GPTQ 4-bit", "gptq-int4-g128") | plain(8_030_261_248),
        ["quantisation_not_in_weights"],
    ),
    Case(
        "Llama-3.1-8B-silent-AWQ", folder(LLAMA31, t.quantise(t.decoder(LLAMA31), t.awq, "F16")),
        LLAMA | {"parameters": REST + LINEAR // 8,
                 "dtype_bytes": {"F16": 2 * REST + 2 * rows(128), "I32": LINEAR // 2 + rows(128) // 2}},
        ["quantisation_not_in_config"],
    ),
    Case(
        "Llama-3.1-8B-cut-for-4", cut, LLAMA | {"sharded_for": 4, "file_count": 8, "dtype_bytes": {"BF16": 4 * 2048}},
        ["presharded"],
    ),
    Case(
        "Qwen2.5-VL-7B-Instruct", folder(QWEN_VL, TINY, chat_template__json=json.dumps({"chat_template": "{{ x }}"})),
        HF | named("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl") | TINY_FACTS
        | dims(28, 3584, 28, 4, 128, 152064, 128000) | rope(1e6, "mrope")
        | {"inputs": ["text", "image", "video"], "file_count": 6, "template_source": "chat_template.json"},
    ),
    Case(
        "gemma-3-4b-it", folder(GEMMA_VL, TINY),
        HF | named("Gemma3ForConditionalGeneration", "gemma3") | TINY_FACTS
        | dims(34, 2560, 8, 4, 256, 262208, 131072) | rope(1e6, "linear", 8.0)
        | {"inputs": ["text", "image"], "sliding_window": 1024},
        shape={"image_tokens": 256, "window": 1024},
    ),
    Case(
        "whisper-large-v3-turbo", folder(WHISPER, TINY, tokenizer_config__json="{}", generation_config__json=None),
        HF | named("WhisperForConditionalGeneration", "whisper") | TINY_FACTS | NO_TEMPLATE
        | {"layers": 32, "hidden_size": 1280, "vocab_size": 51866, "label": "float16", "dtype": "float16", "tasks": [],
           "purpose": "transcribe", "inputs": ["audio"], "context_source": "", "generation": {}, "file_count": 4},
        ["unknown_task"],
    ),
    Case(
        "bge-reranker-v2-m3",
        folder(RERANKER, t.stored(t.encoder(BGE_M3, head="1"), "F32"), tokenizer__json=WORDS,
               tokenizer_config__json="{}", generation_config__json=None),
        HF | named("XLMRobertaForSequenceClassification", "xlm-roberta") | plain(567_755_777, "F32") | NO_TEMPLATE
        | dims(24, 1024, 16, 16, 64, 250002, 8194)
        | {"label": "float32", "dtype": "float32", "tasks": ["score"], "purpose": "rerank", "tokenizer_kind": "unigram",
           "generation": {}, "file_count": 4},
    ),
    Case(
        "bert-sentiment",
        folder(SENTIMENT, t.stored(t.encoder(SENTIMENT, head="3"), "F32"), tokenizer__json=None, vocab__txt="[PAD]",
               tokenizer_config__json="{}", generation_config__json=None),
        HF | named("BertForSequenceClassification", "bert") | plain(109_484_547, "F32") | NO_TEMPLATE
        | dims(12, 768, 12, 12, 64, 30522, 512)
        | {"label": "float32", "dtype": "float32", "tasks": ["score"], "purpose": "classify", "tokenizer": "vocab.txt",
           "tokenizer_kind": "wordpiece", "generation": {}, "file_count": 4},
    ),
    Case(
        "Qwen3-Embedding-0.6B", folder(EMBED, t.stored(t.decoder(EMBED, qk_norm=128)), modules__json="[]"),
        HF | named("Qwen3ForCausalLM", "qwen3") | plain(596_049_920) | dims(28, 1024, 16, 8, 128, 151936, 32768)
        | rope(1e6) | {"tasks": ["embed"], "purpose": "embed", "file_count": 6},
    ),
    Case(
        "Qwen2.5-Math-RM", folder(LLAMA31 | {"architectures": ["Qwen2ForRewardModel"], "model_type": "qwen2"}, TINY),
        LLAMA | named("Qwen2ForRewardModel", "qwen2") | TINY_FACTS | {"tasks": [], "purpose": "reward"},
        ["unknown_task"],
    ),
    Case(
        "llama-3.1-8b-lora", adapter,
        {"format": "hf", "label": "LoRA", "parameters": 32 * 2 * 16 * 4096, "file_count": 2, "dtype": "float32",
         "dtype_bytes": {"F32": 4 * 32 * 2 * 16 * 4096},
         "adapter": {"kind": "lora", "base": "meta-llama/Llama-3.1-8B", "rank": 16, "alpha": 32.0,
                     "targets": ["q_proj", "v_proj"]}},
        ["adapter_only"],
    ),
    Case(
        "Mistral-7B-Instruct-v0.3-consolidated", mistral_form(PARAMS, t.stored(t.decoder(MISTRAL))),
        HF | named("MistralForCausalLM", "mistral") | plain(7_248_023_552) | dims(32, 4096, 32, 8, 128, 32768, 32768)
        | rope(1e6)
        | {"config_format": "mistral", "tokenizer": "tekken.json", "tokenizer_kind": "tekken", "generation": {},
           "template_source": "tekken.json", "context_source": "params.json: max_position_embeddings", "file_count": 3,
           "context_named": None},
    ),
    Case(
        "Pixtral-12B", mistral_form({**PARAMS, "dim": 5120, "n_layers": 40, "vocab_size": 131072,
                                     "max_position_embeddings": 131072, "vision_encoder": EYES}, TINY),
        HF | named("PixtralForConditionalGeneration", "mistral") | TINY_FACTS
        | dims(40, 5120, 32, 8, 128, 131072, 131072) | rope(1e6)
        | {"config_format": "mistral", "tokenizer": "tekken.json", "tokenizer_kind": "tekken", "generation": {},
           "inputs": ["text", "image"], "template_source": "tekken.json", "file_count": 3,
           "context_source": "params.json: max_position_embeddings", "context_named": None},
    ),
    Case(
        "opt-2.7b",
        folder(config("OPTForCausalLM", "opt", num_hidden_layers=32, hidden_size=2560, num_attention_heads=32,
                      vocab_size=50272, max_position_embeddings=2048, ffn_dim=10240), TINY, tokenizer_config__json="{}"),
        HF | named("OPTForCausalLM", "opt") | TINY_FACTS | NO_TEMPLATE | dims(32, 2560, 32, 32, 80, 50272, 2048),
        ["no_chat_template"],
        shape={"mlp_matrices": 2, "tied": True, "mlp_width": 10240},
    ),
]  # fmt: skip
