"""The GGUF header reader: what it reads from whole files, and that broken or hostile ones cost a bounded effort."""

import io
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_catalog.inspect import gguf
from models_catalog.inspect.gguf import parse_gguf, read_gguf
from models_catalog.inspect.reading import Unusable
from tests.models_catalog.builders import GGUF_KEYS, gguf_bytes


def parse(data: bytes) -> gguf.GgufHeader:
    return parse_gguf(io.BytesIO(data), len(data))


def code_of(data: bytes) -> str:
    with pytest.raises(Unusable) as caught:
        parse(data)
    return caught.value.problem.code


@pytest.mark.parametrize(("version", "order"), [(2, "<"), (3, "<"), (3, ">")])
def test_reads_values_lists_and_tensor_sizes(version: int, order: str) -> None:
    keys = {**GGUF_KEYS, "llama.attention.head_count_kv": ("u32", [2, 4])}
    data = gguf_bytes(keys, version=version, order=order)
    header = parse(data)
    assert (header.version, header.big_endian) == (version, order == ">")
    assert header.values["llama.block_count"] == 2
    assert header.values["llama.attention.head_count_kv"] == (2, 4)
    assert header.text("tokenizer.chat_template") == "{{ messages }}"
    assert header.lists["tokenizer.ggml.tokens"] == 4
    assert "tokenizer.ggml.tokens" not in header.values  # walked over, not built
    assert header.elements == 64 * 4 + 64 * 64
    assert header.type_bytes == {"F32": 1024, "Q4_0": 64 * 64 // 32 * 18}
    assert header.expected_size == len(data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "zero_bytes"),
        (b"GG", "truncated"),
        (b"GGUF\x03\0\0\0", "truncated"),
        (b"PK\x03\x04 not a model at all, but long enough", "not_gguf"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "lfs_pointer"),
        (gguf_bytes(version=1), "gguf_version"),
        (gguf_bytes(version=77), "gguf_version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2) + b"\0" * 64, "bad_header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62) + b"\0" * 64, "bad_header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60) + b"\0" * 64, "bad_header"),  # name longer than allowed
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99) + b"\0" * 64, "bad_header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IQ", 8, 2**60) + b"\0" * 64, "truncated"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**60) + b"\0" * 64,
            "truncated",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**61) + b"\0" * 64,
            "truncated",
        ),
        (gguf_bytes({"general.alignment": ("u32", 0)}), "bad_header"),
    ],
)
def test_broken_and_hostile_headers_give_a_code(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_nested_lists_have_an_end() -> None:
    start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9)
    assert code_of(start + struct.pack("<IQ", 9, 1) * 5000) == "bad_header"
    assert code_of(start + struct.pack("<IQ", 9, 2**40) + b"\0" * 4096) == "bad_header"


def test_a_text_too_long_to_keep_is_known_by_its_length() -> None:
    header = parse(gguf_bytes({**GGUF_KEYS, "tokenizer.chat_template": "x" * (gguf.MAX_TEXT + 1)}))
    assert header.lists["tokenizer.chat_template"] == gguf.MAX_TEXT + 1
    assert not header.text("tokenizer.chat_template")


def test_endless_texts_stop_at_the_read_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_READ", 1 << 20)
    count = 1 << 20
    data = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, count) + b"\0" * (count * 8)
    assert code_of(data) == "header_too_large"


def test_a_large_vocabulary_is_walked_in_little_memory() -> None:
    words = [f"word{n}" for n in range(150_000)]
    data = gguf_bytes({**GGUF_KEYS, "tokenizer.ggml.tokens": words})
    file = io.BytesIO(data)
    tracemalloc.start()
    header = parse_gguf(file, len(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.lists["tokenizer.ggml.tokens"] == 150_000
    assert peak < 4 << 20


def test_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(OSError):
        read_gguf(str(tmp_path / "pipe.gguf"))
    with pytest.raises(OSError):
        read_gguf(str(tmp_path))


WHOLE = gguf_bytes()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic_end_in_a_header_or_a_code(data: bytes) -> None:
    try:
        parse(b"GGUF\x03\0\0\0" + data)
    except Unusable as exc:
        assert exc.problem.code


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 9)
)
def test_a_mutated_or_cut_header_ends_in_a_header_or_a_code(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] = value
    if cut:
        data = data[: len(data) * cut // 10]
    try:
        header = parse(bytes(data))
    except Unusable as exc:
        assert exc.problem.code
    else:
        assert header.bytes_read <= gguf.MAX_READ
