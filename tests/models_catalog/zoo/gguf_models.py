"""GGUF files of well-known models, with the keys that llama.cpp's converter writes and tensors in their real shapes."""

import re
from pathlib import Path
from typing import Any

from tests.models_catalog.builders import BLOCKS, gguf_layout, sparse
from tests.models_catalog.zoo.case import Case, Make, dims, rope
from tests.models_catalog.zoo.hf_models import (
    DEEPSEEK,
    GEMMA3,
    LLAMA31,
    MISTRAL,
    MIXTRAL,
    PHI4,
    QWEN2_SMALL,
    QWEN3_MOE,
    QWEN3_SMALL,
)
from tests.models_catalog.zoo.tensors import Shapes, decoder, experts, gated_fused, latent

F32, F16, Q4_0, Q8_0, Q4_K, BF16, MXFP4 = 0, 1, 2, 8, 12, 30, 39
RENAMED = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
TEMPLATE = "{{ messages }}"
GGUF: dict[str, Any] = {
    "format": "gguf", "tasks": ["generate"], "purpose": "generate", "inputs": ["text"], "chat_template": True,
    "template_source": "tokenizer.chat_template", "templates": ["default"], "tokenizer": "gpt2", "tokenizer_kind": "bpe",
    "file_count": 1,
}  # fmt: skip


def keys(
    arch: str, *, tokens: int, model: str = "gpt2", template: str | None = TEMPLATE, **values: Any
) -> dict[str, Any]:
    """General keys, those of the architecture (with __ for a dot), and a tokenizer of so many words."""
    found: dict[str, Any] = {"general.architecture": arch, "general.type": "model", "general.name": arch.title()}
    for name, value in values.items():
        place = name.replace("__", ".")
        found[place if place.startswith(("general.", "split.", "tokenizer.")) else f"{arch}.{place}"] = typed(value)
    found["tokenizer.ggml.model"] = model
    found["tokenizer.ggml.tokens"] = [f"w{n}" for n in range(tokens)]
    found["tokenizer.ggml.token_type"] = ("i32", [1] * tokens)
    if template is not None:
        found["tokenizer.chat_template"] = template
    return found


def typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return ("u32", value)
    if isinstance(value, float):
        return ("f32", value)
    if isinstance(value, list) and value and not isinstance(value[0], str):
        return ("bool" if isinstance(value[0], bool) else "u32", value)
    return value


def base(c: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The keys that every decoder has, from its configuration."""
    return {
        "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
        "attention__head_count": c["num_attention_heads"], "attention__head_count_kv": c["num_key_value_heads"],
        "rope__freq_base": float(c.get("rope_theta", 1e6)), **more,
    }  # fmt: skip


def tensors(shapes: Shapes, kind: int, *extra: tuple[str, list[int], int]) -> list[tuple[str, list[int], int]]:
    """Matrices in one number format, everything else in F32, with the sides in GGUF's order; experts in one tensor."""
    block = BLOCKS[kind][0]
    stacked: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        place = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        if place == name:
            stacked[name] = shape[::-1]
        else:
            stacked[place] = [*shape[::-1], stacked.get(place, [0])[-1] + 1]
    found = []
    for name, sides in stacked.items():
        matrix = len(sides) > 1 and sides[0] % block == 0
        found.append((RENAMED.get(name, name), sides, kind if matrix else F32))
    return [*found, *extra]


def file(name: str, told: dict[str, Any], made: list[tuple[str, list[int], int]], **how: Any) -> Make:
    def make(path: Path) -> None:
        sparse(path / name, gguf_layout(told, made, **how))

    return make


def split(stem: str, count: int, told: dict[str, Any], made: list[tuple[str, list[int], int]], absent: int = 0) -> Make:
    """Parts as gguf-split writes them: the first has all keys, the others those of the split alone."""

    def make(path: Path) -> None:
        for number in range(count):
            own = {
                "split.no": ("u16", number),
                "split.count": ("u16", count),
                "split.tensors.count": ("i32", len(made)),
            }
            part = sparse(
                path / f"{stem}-{number + 1:05d}-of-{count:05d}.gguf",
                gguf_layout({**(told if number == 0 else {}), **own}, made[number::count]),
            )
            if number + 1 == absent:
                part.unlink()

    return make


def facts(arch: str, label: str, bits: int | None, parameters: int | None, by_type: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "architectures": [arch], "model_type": arch, "label": label, "dtype": label, "parameters": parameters,
        "dtype_bytes": by_type, "context_source": f"{arch}.context_length",
    }  # fmt: skip
    if bits:
        found["quantisation"] = {"method": "gguf", "bits": bits, "label": label}
    return GGUF | found


def stored(parameters: int, norms: int, name: str, kind: int, more: int = 0) -> dict[str, int]:
    """Bytes by format when all but the norms (and tables) are in one format."""
    block, size = BLOCKS[kind]
    return {name: (parameters - norms) // block * size, "F32": 4 * (norms + more)}


LLAMA = keys(
    "llama", tokens=128256, general__file_type=15, general__license="llama3.1", **base(LLAMA31), vocab_size=128256,
    rope__dimension_count=128, tokenizer__chat_template__tool_use="{{ tools }}",
    general__source__repo_url="https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct",
    general__sampling__temp=0.6, general__sampling__top_k=40,
)  # fmt: skip
LLAMA_FACTS = dims(32, 4096, 32, 8, 128, 128256, 131072) | rope(500000.0) | {
    "licence": "llama3.1", "templates": ["default", "tool_use"], "generation": {"temperature": 0.6, "top_k": 40.0},
    "origin": "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct",
}  # fmt: skip
TABLE = ("rope_freqs.weight", [64], F32)
MOE = {"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768}
MLA = {
    "attention__kv_lora_rank": 512, "attention__key_length": 576, "attention__value_length": 512,
    "attention__key_length_mla": 192, "attention__value_length_mla": 128, "rope__dimension_count": 64,
    "expert_count": 64, "expert_used_count": 6, "expert_feed_forward_length": 1408, "expert_shared_count": 2,
    "leading_dense_block_count": 1, "rope__scaling__type": "yarn", "rope__scaling__factor": 40.0,
    "rope__scaling__original_context_length": 4096,
}  # fmt: skip
TINY = [("token_embd.weight", [256, 100], Q8_0), ("blk.0.attn_q.weight", [256, 256], Q8_0)]
TINY_BYTES = {"Q8_0": (256 * 100 + 256 * 256) // 32 * 34}
TINY_PARAMETERS = 256 * 356
HEADS = [3, 3, 4, 4]
SMALL = {"block_count": 4, "context_length": 2048, "embedding_length": 256, "feed_forward_length": 512,
         "attention__head_count": 8, "rope__freq_base": 10000.0}  # fmt: skip
HYBRID_HEADS, HYBRID_WIDTHS = [0, 0, 8, 0], [0, 512, 0, 0]
MMPROJ = {
    "general.architecture": "clip", "general.type": "mmproj", "clip.has_vision_encoder": ("bool", True),
    "clip.projector_type": "gemma3", "clip.vision.block_count": ("u32", 27), "general.file_type": ("u32", 1),
}  # fmt: skip
EYES = [("v.patch_embd.weight", [256, 64], F16)]


def gemma(path: Path) -> None:
    """The model and the file that sees for it."""
    told = keys(
        "gemma3", tokens=262144, model="llama", general__file_type=2, **base(GEMMA3), attention__key_length=256,
        attention__value_length=256, attention__sliding_window=512, rope__scaling__type="linear",
        rope__scaling__factor=8.0,
    )  # fmt: skip
    shapes = decoder({**GEMMA3, "tie_word_embeddings": True}, norms=4, qk_norm=256)
    file("gemma-3-1b-it-Q4_0.gguf", told, tensors(shapes, Q4_0))(path)
    file("mmproj-F16.gguf", MMPROJ, EYES)(path)


def small(arch: str, name: str, **more: Any) -> Make:
    told = keys(arch, tokens=100, **{**SMALL, "general__file_type": 7, **more})
    return file(name, told, TINY)


def small_facts(arch: str, **more: Any) -> dict[str, Any]:
    return (
        facts(arch, "Q8_0", 8, TINY_PARAMETERS, TINY_BYTES) | dims(4, 256, 8, 8, 32, 100, 2048) | rope(10000.0) | more
    )


MODELS = [
    Case(
        "Llama-3.1-8B-Q4_K_M",
        file("Llama-3.1-8B-Instruct-Q4_K_M.gguf", LLAMA, tensors(decoder(LLAMA31), Q4_K, TABLE)),
        facts("llama", "Q4_K_M", 4, 8_030_261_248, stored(8_030_261_248, 65 * 4096, "Q4_K", Q4_K, 64)) | LLAMA_FACTS,
        shape={"tied": False, "mlp_width": 14336, "layers": ["full"] * 32},
    ),
    Case(
        "Llama-3.1-8B-Q8_0-in-3-parts",
        split("Llama-3.1-8B-Q8_0", 3, LLAMA | {"general.file_type": ("u32", 7)}, tensors(decoder(LLAMA31), Q8_0)),
        facts("llama", "Q8_0", 8, 8_030_261_248, stored(8_030_261_248, 65 * 4096, "Q8_0", Q8_0)) | LLAMA_FACTS
        | {"file_count": 3},
    ),
    Case(
        "Llama-3.1-8B-without-part-2",
        split("Llama-3.1-8B-Q8_0", 3, {**LLAMA, "general.file_type": ("u32", 7)}, [*TINY, *TINY, *TINY], absent=2),
        facts("llama", "Q8_0", 8, None, {"Q8_0": TINY_BYTES["Q8_0"] * 2}) | LLAMA_FACTS
        | {"file_count": 2, "missing": ["Llama-3.1-8B-Q8_0-00002-of-00003.gguf"]},
        ["missing_parts"],
    ),
    Case(
        "Mistral-7B-v0.3-GGUF-v2",
        file("Mistral-7B-Instruct-v0.3.Q4_0.gguf",
             keys("llama", tokens=32768, model="llama", general__file_type=2, **base(MISTRAL)),
             tensors(decoder(MISTRAL), Q4_0), version=2),
        facts("llama", "Q4_0", 4, 7_248_023_552, stored(7_248_023_552, 65 * 4096, "Q4_0", Q4_0))
        | dims(32, 4096, 32, 8, 128, 32768, 32768) | rope(1e6)
        | {"tokenizer": "llama", "tokenizer_kind": "sentencepiece"},
    ),
    Case(
        "Mixtral-8x7B",
        file("mixtral-8x7b-instruct-v0.1.Q4_K_M.gguf",
             keys("llama", tokens=32000, model="llama", general__file_type=15, expert_count=8, expert_used_count=2,
                  **base(MIXTRAL)), tensors(decoder(MIXTRAL, mlp=experts), Q4_K)),
        facts("llama", "Q4_K_M", 4, 46_702_792_704, stored(46_702_792_704, 65 * 4096, "Q4_K", Q4_K))
        | dims(32, 4096, 32, 8, 128, 32000, 32768) | rope(1e6)
        | {"experts": 8, "experts_used": 2, "tokenizer": "llama", "tokenizer_kind": "sentencepiece"},
        shape={"experts": 8, "experts_used": 2},
    ),
    Case(
        "Qwen2.5-0.5B-F16",
        file("qwen2.5-0.5b-instruct-fp16.gguf",
             keys("qwen2", tokens=151936, general__file_type=1, **base(QWEN2_SMALL)),
             tensors(decoder(QWEN2_SMALL, bias=True), F16)),
        facts("qwen2", "F16", None, 494_032_768,
              stored(494_032_768, 49 * 896 + 24 * (896 + 2 * 128), "F16", F16))
        | dims(24, 896, 14, 2, 64, 151936, 32768) | rope(1e6),
    ),
    Case(
        "Qwen3-0.6B-BF16",
        file("Qwen3-0.6B-BF16.gguf",
             keys("qwen3", tokens=151936, general__file_type=32, **base(QWEN3_SMALL), attention__key_length=128,
                  attention__value_length=128), tensors(decoder(QWEN3_SMALL, qk_norm=128), BF16)),
        facts("qwen3", "BF16", None, 596_049_920, stored(596_049_920, 57 * 1024 + 56 * 128, "BF16", BF16))
        | dims(28, 1024, 16, 8, 128, 151936, 40960) | rope(1e6),
        shape={"tied": True},
    ),
    Case(
        "Qwen3-30B-A3B-Q4_K_M",
        file("Qwen3-30B-A3B-Q4_K_M.gguf",
             keys("qwen3moe", tokens=151936, general__file_type=15, **base(QWEN3_MOE), attention__key_length=128,
                  attention__value_length=128, **MOE), tensors(decoder(QWEN3_MOE, qk_norm=128, mlp=experts), Q4_K)),
        facts("qwen3moe", "Q4_K_M", 4, 30_532_122_624,
              stored(30_532_122_624, 97 * 2048 + 96 * 128, "Q4_K", Q4_K))
        | dims(48, 2048, 32, 4, 128, 151936, 40960) | rope(1e6) | {"experts": 128, "experts_used": 8},
        shape={"expert_width": 768},
    ),
    Case(
        "phi-4-Q4_K_M",
        file("phi-4-Q4_K_M.gguf", keys("phi3", tokens=100352, general__file_type=15, **base(PHI4)),
             tensors(decoder(PHI4, fused=True, mlp=gated_fused), Q4_K)),
        facts("phi3", "Q4_K_M", 4, 14_659_507_200, stored(14_659_507_200, 81 * 5120, "Q4_K", Q4_K))
        | dims(40, 5120, 40, 10, 128, 100352, 16384) | rope(250000.0),
    ),
    Case(
        "DeepSeek-V2-Lite-Q8_0",
        file("DeepSeek-V2-Lite-Chat.Q8_0.gguf",
             keys("deepseek2", tokens=102400, general__file_type=7, **base(DEEPSEEK) | {"attention__head_count_kv": 1},
                  **MLA), tensors(decoder(DEEPSEEK, attention=latent, mlp=experts), Q8_0)),
        facts("deepseek2", "Q8_0", 8, 15_706_484_224,
              stored(15_706_484_224, 55 * 2048 + 27 * 512, "Q8_0", Q8_0))
        | dims(27, 2048, 16, 1, 192, 102400, 163840) | rope(10000.0, "yarn", 40.0, 4096)
        | {"value_length": 128, "experts": 64, "experts_used": 6, "context_named": None},
        shape={"latent": {"kv_rank": 512, "q_rank": 0, "rope": 64, "nope": 128, "value": 128}, "dense_layers": 1,
               "shared_width": 2816},
    ),
    Case(
        "gpt-oss-MXFP4",
        file("gpt-oss-20b-MXFP4.gguf",
             keys("gpt-oss", tokens=100, **SMALL, general__file_type=38, attention__sliding_window=128,
                  expert_count=32, expert_used_count=4, attention__head_count_kv=8),
             [("token_embd.weight", [256, 100], Q8_0), ("blk.0.ffn_down_exps.weight", [256, 256, 32], MXFP4)]),
        facts("gpt-oss", "MXFP4", 4, 256 * 100 + 256 * 256 * 32,
              {"Q8_0": 800 * 34, "MXFP4": 256 * 256 * 32 // 32 * 17})
        | dims(4, 256, 8, 8, 32, 100, 2048) | rope(10000.0)
        | {"sliding_window": 128, "experts": 32, "experts_used": 4},
        shape={"layers": ["sliding", "full", "sliding", "full"]},
    ),
    Case(
        "OpenELM-heads-by-layer", small("openelm", "openelm-Q8_0.gguf", attention__head_count_kv=HEADS),
        small_facts("openelm", kv_heads=4, heads_by_layer=HEADS),
    ),
    Case(
        "Nemotron-H-hybrid",
        small("nemotron_h", "nemotron-h-Q8_0.gguf", attention__head_count_kv=HYBRID_HEADS,
              feed_forward_length=HYBRID_WIDTHS, ssm__inner_size=512, ssm__state_size=16, ssm__time_step_rank=8,
              ssm__group_count=2, ssm__conv_kernel=4),
        small_facts("nemotron_h", heads_by_layer=HYBRID_HEADS),
        shape={"layers": ["mamba", "mlp", "full", "mamba"]},
    ),
    Case(
        "GLM-4.5-Air-with-a-layer-that-guesses",
        small("glm4moe", "glm-4.5-air-Q8_0.gguf", block_count=5, nextn_predict_layers=1),
        small_facts("glm4moe"),
    ),
    Case(
        "gemma-with-window-pattern",
        small("gemma4", "gemma-Q8_0.gguf", attention__sliding_window=512, attention__key_length=64,
              attention__value_length=64, attention__key_length_swa=32, attention__value_length_swa=32,
              attention__sliding_window_pattern=[True, True, True, False]),
        small_facts("gemma4", sliding_window=512, head_dim=64, key_length=64, value_length=64),
        shape={"layers": ["sliding"] * 3 + ["full"], "head_dim": 32, "global_head_dim": 64},
    ),
    Case(
        "nomic-embed", small("nomic-bert", "nomic-embed-Q8_0.gguf", pooling_type=1, template=None, model="bert"),
        small_facts("nomic-bert", purpose="embed", tasks=["embed"], chat_template=False, template_source="",
                    templates=[], tokenizer="bert", tokenizer_kind="wordpiece"),
    ),
    Case(
        "Qwen3-Reranker", small("qwen3", "qwen3-reranker-Q8_0.gguf", pooling_type=4),
        small_facts("qwen3", purpose="rerank", tasks=["score"]),
    ),
    Case(
        "Qwen3-Embedding", small("qwen3", "qwen3-embedding-Q8_0.gguf", pooling_type=3),
        small_facts("qwen3", purpose="embed", tasks=["embed"]),
    ),
    Case(
        "llama-lora",
        file("lora-f16.gguf",
             {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora",
              "adapter.lora.alpha": ("f32", 32.0), "general.file_type": ("u32", 1),
              "general.base_model.0.name": "Llama 3.1 8B", "general.base_model.count": ("u32", 1)},
             [("blk.0.attn_q.weight.lora_a", [4096, 16], F16), ("blk.0.attn_q.weight.lora_b", [16, 4096], F16)]),
        {"format": "gguf", "architectures": ["llama"], "model_type": "llama", "label": "F16", "dtype": "F16",
         "parameters": 131072, "dtype_bytes": {"F16": 262144}, "file_count": 1,
         "adapter": {"kind": "lora", "base": "Llama 3.1 8B", "rank": 16, "alpha": 32.0, "targets": []}},
        ["adapter_only"],
    ),
    Case(
        "big-endian",
        file("granite-be-Q8_0.gguf", keys("granite", tokens=100, **SMALL, general__file_type=7), TINY, order=">"),
        small_facts("granite"), ["byte_order"],
    ),
]  # fmt: skip
