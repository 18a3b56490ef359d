"""Small real files: GGUF, safetensors, Hugging Face folders and the Hugging Face cache, written byte by byte."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
LLAMA_TENSORS: dict[str, tuple[str, list[int]]] = {
    "model.embed_tokens.weight": ("BF16", [32, 16]),
    "model.norm.weight": ("BF16", [16]),
}
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "I64": 8}
GGUF_CODES = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "B"), "u64": (10, "Q")}
GGUF_CODES |= {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "i64": (11, "q"), "f64": (12, "d")}
GGUF_KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny Llama",
    "general.file_type": ("u32", 2),
    "llama.block_count": ("u32", 2),
    "llama.embedding_length": ("u32", 64),
    "llama.attention.head_count": ("u32", 4),
    "llama.attention.head_count_kv": ("u32", 2),
    "llama.context_length": ("u32", 4096),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "你"],
    "tokenizer.chat_template": "{{ messages }}",
}
GGUF_TENSORS = [("token_embd.weight", [64, 4], 0), ("blk.0.attn_q.weight", [64, 64], 2)]  # F32, Q4_0
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2), 39: (32, 17)}


def gguf_bytes(
    keys: Mapping[str, Any] | None = None,
    tensors: Sequence[tuple[str, list[int], int]] = tuple(GGUF_TENSORS),
    *,
    version: int = 3,
    order: str = "<",
    data: bool = True,
) -> bytes:
    """A whole GGUF file. Values: text, list of texts, ("u32", number) or ("u32", [numbers])."""
    head, size = gguf_layout(keys, tensors, version=version, order=order)
    return head + b"\0" * (size - len(head)) if data else head


def gguf_layout(
    keys: Mapping[str, Any] | None = None,
    tensors: Sequence[tuple[str, list[int], int]] = tuple(GGUF_TENSORS),
    *,
    version: int = 3,
    order: str = "<",
) -> tuple[bytes, int]:
    """The header of a GGUF file, and the size of the whole one."""
    keys = GGUF_KEYS if keys is None else keys

    def text(value: str | bytes) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack(order + "Q", len(raw)) + raw

    def packed(value: Any) -> bytes:
        if isinstance(value, str | bytes):
            return struct.pack(order + "I", 8) + text(value)
        if isinstance(value, list):
            return struct.pack(order + "IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        number, code = GGUF_CODES[value[0]]
        if isinstance(value[1], list):
            head = struct.pack(order + "IIQ", 9, number, len(value[1]))
            return head + struct.pack(f"{order}{len(value[1])}{code}", *value[1])
        return struct.pack(order + "I" + code, number, value[1])

    out = bytearray(b"GGUF" + struct.pack(order + "IQQ", version, len(tensors), len(keys)))
    out += b"".join(text(key) + packed(value) for key, value in keys.items())
    offset = 0
    for name, shape, kind in tensors:
        out += text(name) + struct.pack(f"{order}I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        block, size = BLOCKS[kind]
        count = 1
        for dimension in shape:
            count *= dimension
        offset += -(-(count // block * size) // 32) * 32
    return bytes(out), -(-len(out) // 32) * 32 + offset if tensors else len(out)


def safetensors_bytes(tensors: Mapping[str, tuple[str, list[int]]] | None = None) -> bytes:
    """A whole safetensors file with zeros as weights."""
    head, size = safetensors_layout(LLAMA_TENSORS if tensors is None else tensors)
    return head + b"\0" * (size - len(head))


def safetensors_layout(tensors: Mapping[str, tuple[str, list[int]]]) -> tuple[bytes, int]:
    """The header of a safetensors file with its length before it, and the size of the whole file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    head = struct.pack("<Q", len(raw)) + raw
    return head, len(head) + offset


def sparse(path: Path, layout: tuple[bytes, int]) -> Path:
    """A file with a header and a hole for the weights: as long as the real one, but it takes no room."""
    with path.open("wb") as file:
        file.write(layout[0])
        file.truncate(layout[1])
    return path


def hf_folder(path: Path, *, config: Mapping[str, Any] | None = None, **files: bytes | str | None) -> Path:
    """A complete small model; `files` (with __ for a dot) replace or, as None, leave out single files."""
    path.mkdir(parents=True, exist_ok=True)
    content: dict[str, bytes | str | None] = {
        "config.json": json.dumps({**LLAMA, **(config or {})}),
        "model.safetensors": safetensors_bytes(),
        "tokenizer.json": '{"model": {}}',
        "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
    }
    content |= {name.replace("__", "."): value for name, value in files.items()}
    for name, value in content.items():
        if value is not None:
            (path / name).write_bytes(value.encode() if isinstance(value, str) else value)
    return path


def hf_cache(hub: Path, repo: str, revision: str = "a" * 40, *, ref: str = "main", incomplete: int = 0) -> Path:
    """A model in the cache's layout: blobs, a snapshot of symbolic links, a ref. Returns the snapshot."""
    top = hub / ("models--" + repo.replace("/", "--"))
    source = hf_folder(hub / ".made")
    snapshot, blobs, refs = top / "snapshots" / revision, top / "blobs", top / "refs"
    for folder in (snapshot, blobs, refs):
        folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(sorted(source.iterdir())):
        blob = blobs / f"{number:064x}"
        blob.write_bytes(file.read_bytes())
        link = snapshot / file.name
        if not link.is_symlink():
            link.symlink_to(Path("..", "..", "blobs", blob.name))
    for number in range(incomplete):
        (blobs / f"{number:064x}.incomplete").write_bytes(b"part")
    (refs / ref).write_text(revision)
    return snapshot
