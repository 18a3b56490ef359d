"""The safetensors header reader: sums, unpacking, damage, and memory that does not grow with what a file claims."""

import io
import json
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models_catalog.inspect import safetensors
from models_catalog.inspect.reading import Unusable
from models_catalog.inspect.safetensors import parse_safetensors
from tests.models_catalog.builders import safetensors_bytes


def parse(data: bytes) -> safetensors.Weights:
    return parse_safetensors(io.BytesIO(data), len(data))


def header(text: bytes, tail: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + tail


def test_counts_bytes_and_parameters() -> None:
    weights = parse(safetensors_bytes({"a": ("BF16", [3, 4]), "b": ("F32", [2]), "scalar": ("F32", [])}))
    assert weights.tensors == 3
    assert weights.bytes_by_format == {"BF16": 24, "F32": 12}
    assert weights.parameters(None) == 12 + 2 + 1


@pytest.mark.parametrize(
    ("tensors", "bits", "expected"),
    [
        ({"l.qweight": ("I32", [8, 16]), "l.qzeros": ("I32", [1, 2]), "l.scales": ("F16", [1, 16])}, 4, 8 * 16 * 8),
        ({"l.qweight": ("I32", [8, 16]), "l.g_idx": ("I32", [64])}, 8, 8 * 16 * 4),
        ({"l.weight_packed": ("I32", [4, 4]), "l.weight_scale": ("BF16", [4]), "l.weight_shape": ("I64", [2])}, 4, 128),
        ({"l.weight": ("F8_E4M3", [8, 8]), "l.weight_scale_inv": ("F32", [1])}, 8, 64),
        ({"l.gate_up_proj_blocks": ("U8", [4, 16]), "l.gate_up_proj_scales": ("U8", [4])}, 4, 128),
        ({"l.weight": ("U8", [32, 1]), "l.weight.absmax": ("U8", [4]), "l.weight.quant_map": ("F32", [16])}, 4, 64),
    ],
)
def test_packed_weights_are_unpacked(tensors: dict[str, tuple[str, list[int]]], bits: int, expected: int) -> None:
    assert parse(safetensors_bytes(tensors)).parameters(bits) == expected


WHOLE = safetensors_bytes()
ENTRY = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "zero_bytes"),
        (b"abc", "truncated"),
        (WHOLE[:-1], "truncated"),
        (WHOLE[:40], "truncated"),
        (WHOLE + b"!", "trailing_bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "lfs_pointer"),
        (b"<html><body>404</body></html>", "bad_header"),
        (struct.pack("<Q", 2**63) + b"{}", "bad_header"),
        (header(b"[]"), "bad_header"),
        (header(b"{" * 5000), "bad_header"),
        (header(b'{"a":' + b"[" * 100_000 + b"}"), "bad_header"),
        (header(b'{"a":{}}'), "bad_header"),
        (header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}'), "bad_header"),
        (header(b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', b"\0" * 8), "bad_header"),
        (header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}', b"\0" * 8), "bad_header"),
        (header(b'{"a":{"dtype":"X","shape":[1],"data_offsets":[0,9007199254740991]}}'), "truncated"),
        (header(ENTRY[:-1] + b",", b"\0" * 8), "bad_header"),
        (header(b'{"\xff":{}}'), "bad_header"),
    ],
)
def test_damage_gives_a_code(data: bytes, code: str) -> None:
    with pytest.raises(Unusable) as caught:
        parse(data)
    assert caught.value.problem.code == code


def test_padding_after_the_header_and_an_empty_header_are_fine() -> None:
    assert parse(header(ENTRY + b"   ", b"\0" * 8)).tensors == 1
    assert parse(header(b"{}")).tensors == 0


def test_a_header_of_many_entries_takes_little_memory() -> None:
    entries = {
        f"model.layers.{n}.weight": {"dtype": "F32", "shape": [1], "data_offsets": [n * 4, n * 4 + 4]}
        for n in range(60_000)
    }
    data = header(json.dumps(entries).encode(), b"\0" * 240_000)
    del entries
    file = io.BytesIO(data)
    tracemalloc.start()
    assert parse_safetensors(file, len(data)).parameters(None) == 60_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20  # the header itself has 5 MB


def test_one_endless_entry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "MAX_ENTRY", 1 << 20)
    data = header(b'{"__metadata__":{"x":"' + b"y" * (3 << 20))
    with pytest.raises(Unusable) as caught:
        parse(data)
    assert caught.value.problem.code == "header_too_large"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_mutated_files_end_in_sums_or_a_code(changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] = value
    try:
        parse(bytes(data))
    except Unusable as exc:
        assert exc.problem.code
