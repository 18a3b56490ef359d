"""Damaged and hostile files: every inspector ends in bounded time and memory, with facts or a clear sentence."""

import io
import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from models_catalog import wording
from models_catalog.facts import ModelFacts
from models_catalog.inspect import gguf, safetensors
from models_catalog.inspect.gguf import parse_gguf
from models_catalog.inspect.one import look_at
from models_catalog.inspect.reading import Unusable
from panel.fleet.agent.sample_model import folders, is_ready
from tests.models_catalog.builders import LLAMA, gguf_bytes, hf_folder, safetensors_bytes
from tests.models_catalog.zoo.twin import twin_layout

MEMORY = 64 << 20
AGAIN = how(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Endless(io.RawIOBase):
    """A file of any length that is made up as it is read: a head, then one piece again and again."""

    def __init__(self, head: bytes, piece: bytes) -> None:
        self.head, self.piece, self.place = head, piece, 0

    def seek(self, place: int, whence: int = 0) -> int:
        self.place = place
        return place

    def read(self, count: int = -1) -> bytes:
        start, self.place = self.place, self.place + count
        found = self.head[start : start + count]
        start = max(0, start - len(self.head)) % len(self.piece)
        lacking = count - len(found)
        return found + (self.piece * (lacking // len(self.piece) + 2))[start : start + lacking]


def clear(problem: dict[str, Any]) -> bool:
    """Whether a person reads a sentence with everything in its place."""
    text = str(wording.of_file(problem).text)
    whole = text.endswith(".") and "%(" not in text and not re.search(r"\bNone\b", text)
    return problem["code"] in wording.FILES and whole


def told(read: Callable[[], Any]) -> str:
    """The code that reading ends with, "" for success; memory stays below its bound."""
    tracemalloc.start()
    try:
        read()
    except Unusable as exc:
        assert clear({"code": exc.problem.code, "params": {"file": "m.gguf", **exc.problem.params}})
        return exc.problem.code
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY
    return ""


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


START = b"GGUF" + struct.pack("<I", 3)
HOSTILE = {
    "keys that never end": (struct.pack("<QQ", 0, 16384), key(b"k" * 4096, 4, b"\0" * 4)),
    "keys that are no text": (struct.pack("<QQ", 0, 16384), key(b"\xff" * 4096, 4, b"\0" * 4)),
    "lists that are all just short enough": (
        struct.pack("<QQ", 0, 16384), key(b"k", 9, struct.pack("<IQ", 6, 1024) + b"\x01\x02\x03\x3f" * 1024),
    ),
    "texts that are all just short enough": (struct.pack("<QQ", 0, 16384), key(b"k", 8, struct.pack("<Q", 1 << 20) + b"x" * (1 << 20))),
    "words without end": (
        struct.pack("<QQ", 0, 1) + key(b"k", 9, struct.pack("<IQ", 8, 1 << 50)), struct.pack("<Q", 1) + b"w",
    ),
    "tensors without end": (
        struct.pack("<QQ", 65536, 0), struct.pack("<Q", 4096) + b"n" * 4096 + struct.pack("<IQIQ", 1, 32, 0, 0),
    ),
    "lists in lists": (
        struct.pack("<QQ", 0, 1) + key(b"k", 9, struct.pack("<IQ", 9, 60000)), struct.pack("<IQ", 9, 60000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_gguf_headers_cost_little(name: str) -> None:
    head, piece = HOSTILE[name]
    file = Endless(START + head, piece)
    told(lambda: parse_gguf(file, 1 << 60))  # type: ignore[arg-type]  # it reads and seeks as a file does
    assert file.place < 1 << 40


def header() -> bytes:
    """The header of the real small model where it is prepared, else one of the same size."""
    cache: Path = settings.TEST_ENGINE_CACHE
    if not is_ready(cache):
        return twin_layout()[0]
    with folders(cache)[1].open("rb") as file:
        return file.read(2 << 20)


REAL = header()
KEYS, TAIL = 3000, 20_000  # where the structure is; between lie words


@AGAIN
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, KEYS), st.integers(len(REAL) - TAIL, len(REAL) - 8), st.integers(0, len(REAL) - 8)),
            st.one_of(st.integers(0, 255).map(lambda n: bytes([n])), st.binary(min_size=8, max_size=8)),
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_a_real_header_with_changed_bytes(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(REAL)
    for place, piece in changes:
        data[place : place + len(piece)] = piece
    try:
        found = parse_gguf(io.BytesIO(bytes(data)), 98 << 20)
    except Unusable as exc:
        assert clear({"code": exc.problem.code, "params": {"file": "m.gguf", **exc.problem.params}})
    else:
        assert found.bytes_read <= gguf.MAX_READ


@AGAIN
@given(st.integers(0, len(REAL)))
def test_a_real_header_that_ends_anywhere_is_cut_off(size: int) -> None:
    code = ""
    try:
        found = parse_gguf(io.BytesIO(REAL[:size]), size)
        assert found.expected_size is None or found.expected_size > size
    except Unusable as exc:
        code = exc.problem.code
    assert code in ("", "truncated", "zero_bytes")


@AGAIN
@given(data=st.data())
def test_a_damaged_file_is_listed_with_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    """The whole way, from bytes on the disk to what a page says, for each kind of file."""
    whole = {
        "m.gguf": gguf_bytes(),
        "model.safetensors": safetensors_bytes(),
        "config.json": json.dumps(LLAMA).encode(),
    }
    name = data.draw(st.sampled_from(sorted(whole)))
    bad = bytearray(whole[name])
    for place in data.draw(st.lists(st.integers(0, len(bad) - 1), max_size=8)):
        bad[place] = data.draw(st.integers(0, 255))
    place = hf_folder(tmp_path / "m")
    (place / name).write_bytes(bytes(bad[: data.draw(st.integers(0, len(bad)))]))
    for item in look_at(place):
        assert all(clear(problem) for problem in item["problems"])
        if item["format"] != "folder":
            ModelFacts.from_dict(json.loads(json.dumps(item["facts"])))
    (place / "m.gguf").unlink(missing_ok=True)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
WORDS = st.sampled_from([
    "text_config", "vision_config", "audio_config", "quantization_config", "quantization", "rope_scaling", "auto_map",
    "rope_parameters", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "sliding_window", "layer_types", "max_position_embeddings", "id2label", "head_dim", "num_local_experts", "moe",
    "kv_lora_rank", "bits", "config_groups", "chat_template", "dim", "n_layers", "yarn", "vision_encoder", "r",
    "target_modules", "temperature", "architectures", "model_type", "torch_dtype", "ignore", "multimodal",
])  # fmt: skip


@how(AGAIN, max_examples=50)
@given(config=st.dictionaries(WORDS, JUNK | st.dictionaries(WORDS, JUNK, max_size=4), max_size=10))
def test_configurations_of_any_content(tmp_path: Path, config: dict[str, Any]) -> None:
    text = json.dumps(config)
    for files in (
        {"config__json": json.dumps(LLAMA | config), "tokenizer_config__json": text, "generation_config__json": text},
        {"config__json": text, "hf_quant_config__json": text, "chat_template__json": text},
        {"config__json": None, "params__json": text, "consolidated__safetensors": safetensors_bytes()},
        {"config__json": None, "adapter_config__json": text},
    ):
        place = hf_folder(tmp_path / "m", **files)
        for item in look_at(place):
            assert all(clear(problem) for problem in item["problems"]) or item["format"] == "folder"
        for file in place.iterdir():
            file.unlink()


def test_a_safetensors_header_without_end_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of the largest size, of entries that are each in order; fewer of them, since memory is watched."""
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 20_000)
    entry = b'"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
    file = Endless(struct.pack("<Q", safetensors.MAX_HEADER) + b"{", entry)
    assert told(lambda: safetensors.parse_safetensors(file, 1 << 40)) == "header_too_large"  # type: ignore[arg-type]
    assert file.place < 4 << 20


@pytest.mark.parametrize("piece", [b"[],", b'"x":{},', b'"x":[' + b"0," * 50, b'{"a":', b"\xff"])
def test_small_headers_of_nonsense_fit_in_memory(piece: bytes) -> None:
    size = safetensors.SMALL
    data = struct.pack("<Q", size) + (b"{" + piece * (size // len(piece) + 1))[:size]
    assert told(lambda: safetensors.parse_safetensors(io.BytesIO(data), len(data))) == "bad_header"
