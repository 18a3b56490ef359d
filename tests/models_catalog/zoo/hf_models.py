"""Hugging Face folders of well-known models in their real shapes. Parameters are those that their makers publish."""

import json
from typing import Any

from tests.models_catalog.zoo.case import HF, Case, dims, folder, named, plain, rope
from tests.models_catalog.zoo.tensors import decoder, encoder, experts, gated_fused, gpt_oss, latent, stored


def config(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, "torch_dtype": "bfloat16", **more}


def shape(layers: int, hidden: int, heads: int, kv: int, inner: int, vocab: int, context: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv,
        "intermediate_size": inner, "vocab_size": vocab, "max_position_embeddings": context,
    }  # fmt: skip


LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA31 = config(
    "LlamaForCausalLM", "llama", **shape(32, 4096, 32, 8, 14336, 128256, 131072),
    rope_theta=500000.0, rope_scaling=LLAMA3_ROPE,
)  # fmt: skip
LLAMA32 = config(
    "LlamaForCausalLM", "llama", **shape(16, 2048, 32, 8, 8192, 128256, 131072), head_dim=64, rope_theta=500000.0,
    rope_scaling={**LLAMA3_ROPE, "factor": 32.0}, tie_word_embeddings=True,
)  # fmt: skip
LLAMA2 = config("LlamaForCausalLM", "llama", **shape(32, 4096, 32, 32, 11008, 32000, 4096)) | {"torch_dtype": "float16"}
QWEN2 = config(
    "Qwen2ForCausalLM", "qwen2", **shape(28, 3584, 28, 4, 18944, 152064, 32768), rope_theta=1e6, sliding_window=131072,
    use_sliding_window=False,
)  # fmt: skip
QWEN2_SMALL = config(
    "Qwen2ForCausalLM", "qwen2", **shape(24, 896, 14, 2, 4864, 151936, 32768), rope_theta=1e6, tie_word_embeddings=True
)
QWEN3 = config(
    "Qwen3ForCausalLM", "qwen3", **shape(36, 4096, 32, 8, 12288, 151936, 40960), head_dim=128, rope_theta=1e6
)
QWEN3_SMALL = config(
    "Qwen3ForCausalLM", "qwen3", **shape(28, 1024, 16, 8, 3072, 151936, 40960), head_dim=128, tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
)  # fmt: skip
QWEN3_MOE = config(
    "Qwen3MoeForCausalLM", "qwen3_moe", **shape(48, 2048, 32, 4, 6144, 151936, 40960), head_dim=128, rope_theta=1e6,
    num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1,
)  # fmt: skip
GEMMA3 = config(
    "Gemma3ForCausalLM", "gemma3_text", **shape(26, 1152, 4, 1, 6912, 262144, 32768), head_dim=256, rope_theta=1e6,
    sliding_window=512, sliding_window_pattern=6,
)  # fmt: skip
GEMMA2 = config(
    "Gemma2ForCausalLM", "gemma2", **shape(26, 2304, 8, 4, 9216, 256000, 8192), head_dim=256, rope_theta=10000.0,
    sliding_window=4096,
)  # fmt: skip
MISTRAL = config(
    "MistralForCausalLM", "mistral", **shape(32, 4096, 32, 8, 14336, 32768, 32768), rope_theta=1e6, sliding_window=None
)
MISTRAL1 = config(
    "MistralForCausalLM", "mistral", **shape(32, 4096, 32, 8, 14336, 32000, 32768), rope_theta=10000.0,
    sliding_window=4096,
)  # fmt: skip
MIXTRAL = config(
    "MixtralForCausalLM", "mixtral", **shape(32, 4096, 32, 8, 14336, 32000, 32768), rope_theta=1e6,
    num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
)  # fmt: skip
DEEPSEEK = config(
    "DeepseekV2ForCausalLM", "deepseek_v2", **shape(27, 2048, 16, 16, 10944, 102400, 163840), kv_lora_rank=512,
    q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=64, rope_theta=10000,
    num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1,
    rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707},
    auto_map={"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
)  # fmt: skip
GPT_OSS = config(
    "GptOssForCausalLM", "gpt_oss", **shape(24, 2880, 64, 8, 2880, 201088, 131072), head_dim=64, sliding_window=128,
    num_local_experts=32, num_experts_per_tok=4, rope_theta=150000, quantization_config={"quant_method": "mxfp4"},
    rope_scaling={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    layer_types=["sliding_attention", "full_attention"] * 12,
)  # fmt: skip
PHI4 = config("Phi3ForCausalLM", "phi3", **shape(40, 5120, 40, 10, 17920, 100352, 16384), rope_theta=250000)
PHI3_MINI = config(
    "Phi3ForCausalLM", "phi3", **shape(32, 3072, 32, 32, 8192, 32064, 131072), rope_theta=10000.0, sliding_window=262144,
    original_max_position_embeddings=4096, rope_scaling={"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
)  # fmt: skip
GLM4 = config(
    "Glm4ForCausalLM", "glm4", **shape(40, 4096, 32, 2, 13696, 151552, 32768), head_dim=128, rope_theta=10000.0,
    partial_rotary_factor=0.5, attention_bias=True, eos_token_id=[151329, 151336],
)  # fmt: skip
GRANITE = config(
    "GraniteForCausalLM", "granite", **shape(40, 2048, 32, 8, 8192, 49155, 131072), rope_theta=5e6,
    tie_word_embeddings=True,
)  # fmt: skip
BGE_M3 = {
    **config("XLMRobertaModel", "xlm-roberta", **shape(24, 1024, 16, 16, 4096, 250002, 8194), type_vocab_size=1),
    "torch_dtype": "float32",
}
WORDS = json.dumps({"version": "1.0", "model": {"type": "Unigram", "unk_id": 3, "vocab": []}})

MODELS = [
    Case(
        "Llama-3.1-8B-Instruct",
        folder(LLAMA31, stored(decoder(LLAMA31)), shards=4, README__md="---\nlicense: llama3.1\nlanguage: en\n---\n# x"),
        HF | named("LlamaForCausalLM", "llama") | plain(8_030_261_248)
        | dims(32, 4096, 32, 8, 128, 128256, 131072) | rope(500000.0, "llama3", 8.0, 8192)
        | {"file_count": 9, "licence": "llama3.1"},
        shape={"mlp_width": 14336, "tied": False, "known": True, "rope_rows": 131072},
    ),
    Case(
        "Llama-3.2-1B-Instruct",
        folder(LLAMA32, stored(decoder(LLAMA32))),
        HF | named("LlamaForCausalLM", "llama") | plain(1_235_814_400)
        | dims(16, 2048, 32, 8, 64, 128256, 131072) | rope(500000.0, "llama3", 32.0, 8192),
        shape={"tied": True},
    ),
    Case(
        "Llama-2-7b-hf",
        folder(LLAMA2, stored(decoder(LLAMA2), "F16"), shards=2, tokenizer__json=None, tokenizer__model="sentencepiece",
               tokenizer_config__json="{}", generation_config__json=None),
        HF | named("LlamaForCausalLM", "llama") | plain(6_738_415_616, "F16")
        | dims(32, 4096, 32, 32, 128, 32000, 4096)
        | {"label": "float16", "dtype": "float16", "tokenizer": "tokenizer.model", "tokenizer_kind": "sentencepiece",
           "chat_template": False, "template_source": "", "templates": [], "generation": {}, "file_count": 6},
        ["no_chat_template"],
    ),
    Case(
        "Qwen2.5-7B-Instruct",
        folder(QWEN2, stored(decoder(QWEN2, bias=True)), shards=4, vocab__json="{}", merges__txt="a b"),
        HF | named("Qwen2ForCausalLM", "qwen2") | plain(7_615_616_512)
        | dims(28, 3584, 28, 4, 128, 152064, 32768) | rope(1e6) | {"file_count": 11},
        shape={"attention_bias": True, "layers": ["full"] * 28},
    ),
    Case(
        "Qwen2.5-0.5B-Instruct",
        folder(QWEN2_SMALL, stored(decoder(QWEN2_SMALL, bias=True))),
        HF | named("Qwen2ForCausalLM", "qwen2") | plain(494_032_768)
        | dims(24, 896, 14, 2, 64, 151936, 32768) | rope(1e6),
    ),
    Case(
        "Qwen3-8B",
        folder(QWEN3, stored(decoder(QWEN3, qk_norm=128)), shards=5),
        HF | named("Qwen3ForCausalLM", "qwen3") | plain(8_190_735_360)
        | dims(36, 4096, 32, 8, 128, 151936, 40960) | rope(1e6) | {"file_count": 10},
    ),
    Case(
        "Qwen3-0.6B",
        folder(QWEN3_SMALL, stored(decoder(QWEN3_SMALL, qk_norm=128))),
        HF | named("Qwen3ForCausalLM", "qwen3") | plain(596_049_920)
        | dims(28, 1024, 16, 8, 128, 151936, 40960) | rope(1e6),
    ),
    Case(
        "Qwen3-30B-A3B",
        folder(QWEN3_MOE, stored(decoder(QWEN3_MOE, qk_norm=128, mlp=experts)), shards=16),
        HF | named("Qwen3MoeForCausalLM", "qwen3_moe") | plain(30_532_122_624)
        | dims(48, 2048, 32, 4, 128, 151936, 40960) | rope(1e6)
        | {"experts": 128, "experts_used": 8, "file_count": 21},
        shape={"experts": 128, "expert_width": 768, "dense_layers": 0},
    ),
    Case(
        "gemma-3-1b-it",
        folder(GEMMA3, stored(decoder({**GEMMA3, "tie_word_embeddings": True}, norms=4, qk_norm=256))),
        HF | named("Gemma3ForCausalLM", "gemma3_text") | plain(999_885_952)
        | dims(26, 1152, 4, 1, 256, 262144, 32768) | rope(1e6) | {"sliding_window": 512},
        shape={"window": 512, "tied": True},
    ),
    Case(
        "gemma-2-2b-it",
        folder(GEMMA2, stored(decoder({**GEMMA2, "tie_word_embeddings": True}, norms=4)), shards=2),
        HF | named("Gemma2ForCausalLM", "gemma2") | plain(2_614_341_888)
        | dims(26, 2304, 8, 4, 256, 256000, 8192) | rope(10000.0) | {"sliding_window": 4096, "file_count": 7},
        shape={"layers": ["sliding", "full"] * 13},
    ),
    Case(
        "Mistral-7B-Instruct-v0.3",
        folder(MISTRAL, stored(decoder(MISTRAL)), shards=3, consolidated__safetensors=b""),
        HF | named("MistralForCausalLM", "mistral") | plain(7_248_023_552)
        | dims(32, 4096, 32, 8, 128, 32768, 32768) | rope(1e6) | {"file_count": 8},
    ),
    Case(
        "Mistral-7B-v0.1",
        folder(MISTRAL1, stored(decoder(MISTRAL1)), shards=2, tokenizer_config__json="{}"),
        HF | named("MistralForCausalLM", "mistral") | plain(7_241_732_096)
        | dims(32, 4096, 32, 8, 128, 32000, 32768) | rope(10000.0)
        | {"sliding_window": 4096, "file_count": 7, "chat_template": False, "template_source": "", "templates": []},
        ["no_chat_template"],
        shape={"layers": ["sliding"] * 32, "window": 4096},
    ),
    Case(
        "Mixtral-8x7B-Instruct-v0.1",
        folder(MIXTRAL, stored(decoder(MIXTRAL, mlp=experts)), shards=19),
        HF | named("MixtralForCausalLM", "mixtral") | plain(46_702_792_704)
        | dims(32, 4096, 32, 8, 128, 32000, 32768) | rope(1e6) | {"experts": 8, "experts_used": 2, "file_count": 24},
        shape={"experts": 8, "expert_width": 14336},
    ),
    Case(
        "DeepSeek-V2-Lite-Chat",
        folder(DEEPSEEK, stored(decoder(DEEPSEEK, attention=latent, mlp=experts)), shards=4,
               configuration_deepseek__py="class DeepseekV2Config: pass"),
        HF | named("DeepseekV2ForCausalLM", "deepseek_v2") | plain(15_706_484_224)
        | dims(27, 2048, 16, 16, 192, 102400, 163840) | {"value_length": 128} | rope(10000.0, "yarn", 40.0, 4096)
        | {"context_source": "config.json: max_position_embeddings × yarn 40", "experts": 64, "experts_used": 6,
           "file_count": 10, "needs_remote_code": True, "code_files": ["configuration_deepseek.py"]},
        ["needs_remote_code"],
        shape={"latent": {"kv_rank": 512, "q_rank": 0, "rope": 64, "nope": 128, "value": 128}, "shared_width": 2816,
               "dense_layers": 1},
    ),
    Case(
        "gpt-oss-20b",
        folder(GPT_OSS, gpt_oss(GPT_OSS), shards=3, tokenizer_config__json="{}", chat_template__jinja="{{ messages }}"),
        HF | named("GptOssForCausalLM", "gpt_oss") | dims(24, 2880, 64, 8, 64, 201088, 131072)
        | rope(150000.0, "yarn", 32.0, 4096)
        | {"parameters": 20_914_757_184, "label": "MXFP4", "sliding_window": 128, "experts": 32, "experts_used": 4,
           "quantisation": {"method": "mxfp4", "bits": 4, "label": "MXFP4"}, "weight_scheme": "mxfp4", "file_count": 9,
           "dtype_bytes": {"BF16": 3_608_919_168, "U8": 10_152_345_600},
           "template_source": "chat_template.jinja",
           "context_source": "config.json: max_position_embeddings × yarn 32"},
        shape={"layers": ["sliding", "full"] * 12, "window": 128},
    ),
    Case(
        "phi-4",
        folder(PHI4, stored(decoder(PHI4, fused=True, mlp=gated_fused)), shards=6),
        HF | named("Phi3ForCausalLM", "phi3") | plain(14_659_507_200)
        | dims(40, 5120, 40, 10, 128, 100352, 16384) | rope(250000.0) | {"file_count": 11},
    ),
    Case(
        "Phi-3-mini-128k-instruct",
        folder(PHI3_MINI, stored(decoder(PHI3_MINI, fused=True, mlp=gated_fused)), shards=2),
        HF | named("Phi3ForCausalLM", "phi3") | plain(3_821_079_552)
        | dims(32, 3072, 32, 32, 96, 32064, 131072) | rope(10000.0, "longrope", None, 4096)
        | {"sliding_window": 262144, "file_count": 7},
    ),
    Case(
        "GLM-4-9B-0414",
        folder(GLM4, stored(decoder(GLM4, norms=4, mlp=gated_fused, bias=True)), shards=4),
        HF | named("Glm4ForCausalLM", "glm4") | plain(9_400_279_040)
        | dims(40, 4096, 32, 2, 128, 151552, 32768) | rope(10000.0) | {"file_count": 9},
        shape={"rope_width": 64, "attention_bias": True},
    ),
    Case(
        "granite-3.1-2b-instruct",
        folder(GRANITE, stored(decoder(GRANITE))),
        HF | named("GraniteForCausalLM", "granite") | plain(2_533_531_648)
        | dims(40, 2048, 32, 8, 64, 49155, 131072) | rope(5e6),
    ),
    Case(
        "bge-m3",
        folder(BGE_M3, stored(encoder(BGE_M3, head="pooler"), "F32"), tokenizer__json=WORDS, modules__json="[]",
               tokenizer_config__json="{}", generation_config__json=None),
        HF | named("XLMRobertaModel", "xlm-roberta") | plain(567_754_752, "F32")
        | dims(24, 1024, 16, 16, 64, 250002, 8194)
        | {"label": "float32", "dtype": "float32", "tasks": ["embed"], "purpose": "embed", "tokenizer_kind": "unigram",
           "chat_template": False, "template_source": "", "templates": [], "generation": {}},
    ),
]  # fmt: skip
