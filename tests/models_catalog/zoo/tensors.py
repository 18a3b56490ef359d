"""Names and shapes of the tensors of real models, from their configurations, and how quantisations store them."""

from collections.abc import Callable
from typing import Any

Shapes = dict[str, list[int]]
Tensors = dict[str, tuple[str, list[int]]]


def decoder(
    c: dict[str, Any],
    *,
    bias: bool = False,
    qk_norm: int = 0,
    norms: int = 2,
    fused: bool = False,
    layer_norm: bool = False,
    mlp: Callable[[dict[str, Any], str, int], Shapes] | None = None,
    attention: Callable[[dict[str, Any], str], Shapes] | None = None,
) -> Shapes:
    """A decoder in the manner of Llama. `qk_norm`: width of the norms of queries and keys, `norms`: a layer's others."""
    hidden, width = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    heads, kv = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    found: Shapes = {"model.embed_tokens.weight": [c["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if layer_norm:
        found["model.norm.bias"] = [hidden]
    if not c.get("tie_word_embeddings"):
        found["lm_head.weight"] = [c["vocab_size"], hidden]
    for number in range(c["num_hidden_layers"]):
        at = f"model.layers.{number}"
        found |= {f"{at}.norm{index}.weight": [hidden] for index in range(norms)}
        if attention:
            found |= attention(c, at)
        elif fused:
            found[f"{at}.self_attn.qkv_proj.weight"] = [(heads + 2 * kv) * width, hidden]
            found[f"{at}.self_attn.o_proj.weight"] = [hidden, heads * width]
        else:
            sizes = {"q": heads, "k": kv, "v": kv}
            found |= {f"{at}.self_attn.{name}_proj.weight": [n * width, hidden] for name, n in sizes.items()}
            found[f"{at}.self_attn.o_proj.weight"] = [hidden, heads * width]
            if bias:
                found |= {f"{at}.self_attn.{name}_proj.bias": [n * width] for name, n in sizes.items()}
        if qk_norm:
            found |= {f"{at}.self_attn.{name}_norm.weight": [qk_norm] for name in "qk"}
        found |= (mlp or gated)(c, f"{at}.mlp", number)
    return found


def gated(c: dict[str, Any], at: str, layer: int, width: int = 0) -> Shapes:
    hidden, width = c["hidden_size"], width or c["intermediate_size"]
    return {f"{at}.{name}_proj.weight": [width, hidden] for name in ("gate", "up")} | {
        f"{at}.down_proj.weight": [hidden, width]
    }


def gated_fused(c: dict[str, Any], at: str, layer: int) -> Shapes:
    hidden, width = c["hidden_size"], c["intermediate_size"]
    return {f"{at}.gate_up_proj.weight": [2 * width, hidden], f"{at}.down_proj.weight": [hidden, width]}


def experts(c: dict[str, Any], at: str, layer: int) -> Shapes:
    """A router and experts; shared ones, and dense first layers, where the configuration has them."""
    if layer < c.get("first_k_dense_replace", 0):
        return gated(c, at, layer)
    count = c.get("num_experts") or c.get("num_local_experts") or c["n_routed_experts"]
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    found: Shapes = {f"{at}.gate.weight": [count, c["hidden_size"]]}
    for number in range(count):
        found |= gated(c, f"{at}.experts.{number}", layer, width)
    if shared := c.get("n_shared_experts"):
        found |= gated(c, f"{at}.shared_experts", layer, shared * width)
    return found


def latent(c: dict[str, Any], at: str) -> Shapes:
    """Multi-head latent attention."""
    hidden, heads, rank, turned = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, value, queries = c["qk_nope_head_dim"], c["v_head_dim"], c.get("q_lora_rank")
    at += ".self_attn"
    found: Shapes = {
        f"{at}.kv_a_proj_with_mqa.weight": [rank + turned, hidden],
        f"{at}.kv_a_layernorm.weight": [rank],
        f"{at}.kv_b_proj.weight": [heads * (nope + value), rank],
        f"{at}.o_proj.weight": [hidden, heads * value],
    }
    if not queries:
        return found | {f"{at}.q_proj.weight": [heads * (nope + turned), hidden]}
    return found | {
        f"{at}.q_a_proj.weight": [queries, hidden],
        f"{at}.q_a_layernorm.weight": [queries],
        f"{at}.q_b_proj.weight": [heads * (nope + turned), queries],
    }


def gpt_oss(c: dict[str, Any]) -> Tensors:
    """Experts in MXFP4 as blocks and scales, everything else plain, with biases and attention sinks."""
    hidden, width, count, heads = (
        c[k] for k in ("hidden_size", "intermediate_size", "num_local_experts", "num_attention_heads")
    )
    plain = decoder(c, bias=True, mlp=lambda c, at, layer: {f"{at}.router.weight": [count, hidden]})
    found = {name: ("BF16", shape) for name, shape in plain.items()}
    for number in range(c["num_hidden_layers"]):
        at = f"model.layers.{number}"
        found[f"{at}.self_attn.sinks"] = ("BF16", [heads])
        found[f"{at}.self_attn.o_proj.bias"] = ("BF16", [hidden])
        found[f"{at}.mlp.router.bias"] = ("BF16", [count])
        for name, rows, columns in (("gate_up_proj", 2 * width, hidden), ("down_proj", hidden, width)):
            place = f"{at}.mlp.experts.{name}"
            found[f"{place}_blocks"] = ("U8", [count, rows, columns // 32, 16])
            found[f"{place}_scales"] = ("U8", [count, rows, columns // 32])
            found[f"{place}_bias"] = ("BF16", [count, rows])
    return found


def encoder(c: dict[str, Any], *, head: str = "", positions: int = 0) -> Shapes:
    """BERT and XLM-RoBERTa; `head` is "pooler" or the classifier's."""
    hidden, width = c["hidden_size"], c["intermediate_size"]
    found: Shapes = {
        "embeddings.word_embeddings.weight": [c["vocab_size"], hidden],
        "embeddings.position_embeddings.weight": [positions or c["max_position_embeddings"], hidden],
        "embeddings.token_type_embeddings.weight": [c.get("type_vocab_size", 2), hidden],
        **_linear("embeddings.LayerNorm", [hidden]),
    }
    for number in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{number}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            found |= _linear(f"{at}.{name}", [hidden, hidden])
        found |= _linear(f"{at}.attention.output.LayerNorm", [hidden]) | _linear(f"{at}.output.LayerNorm", [hidden])
        found |= _linear(f"{at}.intermediate.dense", [width, hidden]) | _linear(f"{at}.output.dense", [hidden, width])
    if head == "pooler":
        found |= _linear("pooler.dense", [hidden, hidden])
    elif head:
        labels = int(head)
        found |= _linear("classifier.dense", [hidden, hidden]) | _linear("classifier.out_proj", [labels, hidden])
    return found


def _linear(name: str, shape: list[int]) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": [shape[0]]}


def stored(shapes: Shapes, dtype: str = "BF16") -> Tensors:
    return {name: (dtype, shape) for name, shape in shapes.items()}


# --- quantisations ----------------------------------------------------------------------------------------------------


def quantise(shapes: Shapes, scheme: Callable[[str, int, int], Tensors], plain: str = "BF16") -> Tensors:
    """Linear layers packed by a scheme; words, norms and routers stay as they are."""
    found: Tensors = {}
    for name, shape in shapes.items():
        if name.endswith("_proj.weight"):
            found |= scheme(name.removesuffix(".weight"), shape[0], shape[1])
        else:
            found[name] = (plain, shape)
    return found


def gptq(at: str, out: int, inner: int, bits: int = 4, group: int = 128) -> Tensors:
    return {
        f"{at}.qweight": ("I32", [inner * bits // 32, out]),
        f"{at}.qzeros": ("I32", [inner // group, out * bits // 32]),
        f"{at}.scales": ("F16", [inner // group, out]),
        f"{at}.g_idx": ("I32", [inner]),
    }


def gptq8(at: str, out: int, inner: int) -> Tensors:
    return gptq(at, out, inner, bits=8)


def awq(at: str, out: int, inner: int) -> Tensors:
    return {
        f"{at}.qweight": ("I32", [inner, out // 8]),
        f"{at}.qzeros": ("I32", [inner // 128, out // 8]),
        f"{at}.scales": ("F16", [inner // 128, out]),
    }


def fp8_block(at: str, out: int, inner: int) -> Tensors:
    return {
        f"{at}.weight": ("F8_E4M3", [out, inner]),
        f"{at}.weight_scale_inv": ("F32", [-(-out // 128), -(-inner // 128)]),
    }


def fp8_tensor(at: str, out: int, inner: int) -> Tensors:
    return {
        f"{at}.weight": ("F8_E4M3", [out, inner]),
        f"{at}.weight_scale": ("F32", []),
        f"{at}.input_scale": ("F32", []),
    }


def packed4(at: str, out: int, inner: int) -> Tensors:
    """compressed-tensors, pack-quantized."""
    return {
        f"{at}.weight_packed": ("I32", [out, inner // 8]),
        f"{at}.weight_scale": ("BF16", [out, inner // 128]),
        f"{at}.weight_shape": ("I64", [2]),
    }


def int8(at: str, out: int, inner: int) -> Tensors:
    return {f"{at}.weight": ("I8", [out, inner]), f"{at}.weight_scale": ("BF16", [out, 1])}


def nvfp4(at: str, out: int, inner: int) -> Tensors:
    return {
        f"{at}.weight": ("U8", [out, inner // 2]),
        f"{at}.weight_scale": ("F8_E4M3", [out, inner // 16]),
        f"{at}.weight_scale_2": ("F32", []),
        f"{at}.input_scale": ("F32", []),
    }


def bnb4(at: str, out: int, inner: int) -> Tensors:
    blocks = out * inner // 64
    return {
        f"{at}.weight": ("U8", [out * inner // 2, 1]),
        f"{at}.weight.absmax": ("U8", [blocks]),
        f"{at}.weight.nested_absmax": ("F32", [blocks // 256]),
        f"{at}.weight.nested_quant_map": ("F32", [256]),
        f"{at}.weight.quant_map": ("F32", [16]),
        f"{at}.weight.quant_state.bitsandbytes__nf4": ("U8", [94]),
    }


def bnb8(at: str, out: int, inner: int) -> Tensors:
    return {
        f"{at}.weight": ("I8", [out, inner]),
        f"{at}.SCB": ("F32", [out]),
        f"{at}.weight_format": ("U8", []),
    }


def mlx4(at: str, out: int, inner: int) -> Tensors:
    return {
        f"{at}.weight": ("U32", [out, inner // 8]),
        f"{at}.scales": ("F16", [out, inner // 64]),
        f"{at}.biases": ("F16", [out, inner // 64]),
    }
