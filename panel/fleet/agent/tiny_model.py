"""A language model of random weights, 1 MB on disk, written without any library: enough to see an engine answer.

A Llama with two layers whose tokens are the 256 bytes and two marks. Heads have 32 numbers, the least that vLLM's CPU
kernels take. The weights are the same every time.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

HIDDEN, LAYERS, HEADS, INNER, CONTEXT = 128, 2, 4, 256, 256
MARKS = ("<s>", "</s>")


def alphabet() -> list[str]:
    """The 256 bytes as byte-level BPE writes them: printable ones as they are, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [*map(chr, plain), *(chr(256 + place) for place, _ in enumerate(others))]


def tensors(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (vocabulary, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{at}mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes |= {f"{at}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    return shapes


def write_weights(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file: length of the header, header, float16 numbers."""
    source = random.Random(7)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts, offset = [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [1.0] * count if len(shape) == 1 else [source.uniform(-0.05, 0.05) for _ in range(count)]
        parts.append(struct.pack(f"<{count}e", *numbers))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [offset, offset + 2 * count]}
        offset += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def make(folder: Path) -> Path:
    """Write the model into `folder`; returns it."""
    folder.mkdir(parents=True)
    vocabulary = {token: number for number, token in enumerate([*MARKS, *alphabet()])}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "vocab_size": len(vocabulary),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_mark(number, text) for number, text in enumerate(MARKS)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": []},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": CONTEXT}))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    write_weights(folder / "model.safetensors", tensors(len(vocabulary)))
    return folder


def _mark(number: int, text: str) -> dict[str, object]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": text, "special": True, **plain}
