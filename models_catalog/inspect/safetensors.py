"""Reader of safetensors headers: number formats, shapes and the size a whole file must have. Pure.

The header is a JSON object of up to 100 MB. It is read piece by piece and summed up on the way, so memory stays bounded
by one entry (MAX_ENTRY), whatever the file claims. Weights are never read.
"""

from __future__ import annotations

import json
import struct
from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from models_catalog.inspect.reading import LFS_MARK, MAX_INT, Unusable, clean, open_regular, whole

MAX_HEADER = 100_000_000  # the format's own limit
MAX_ENTRY = 8 << 20  # bytes of one entry; only __metadata__ is ever larger than a few hundred
CHUNK = 256 << 10
MAX_TENSORS = 400_000  # of one file; the largest real models have 150,000 in all of theirs

BITS_OF = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip
SMALL = 2 << 20  # bytes of a header that is taken whole: whatever it holds, it fits in 50 MiB

# Tensors that describe packed weights and are no weights themselves.
_HELPERS = (
    "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_shape",
    "weight_zero_point", "weight_g_idx", "input_scale", "output_scale", "k_scale", "v_scale", "absmax", "quant_map",
    "nested_absmax", "nested_quant_map", "inv_freq", "weight_global_scale", "input_global_scale", "SCB",
    "weight_format", "weight_block_scale", "masked_bias", "biases",
)  # fmt: skip
_PACKED = ("qweight", "weight_packed")
MAX_ENDINGS = 500  # distinct last parts of tensors' names; real models have a dozen


@dataclass
class Weights:
    """Sum over the tensors of one or more files. `numbers` counts by format what is stored, without helper tensors."""

    tensors: int = 0
    bytes: int = 0
    bytes_by_format: dict[str, int] = field(default_factory=dict)
    plain: int = 0  # weights stored one by one
    packed32: int = 0  # 32-bit words that hold several weights each
    packed8: int = 0  # bytes that may hold two weights each
    endings: set[str] = field(default_factory=set)  # last parts of the tensors' names
    lora_rank: int | None = None

    def add(self, name: str, dtype: str, shape: list[int], size: int) -> None:
        count = 1
        for dimension in shape:
            count *= dimension
        self.tensors += 1
        self.bytes += size
        self.bytes_by_format[dtype] = self.bytes_by_format.get(dtype, 0) + size
        last = name.rpartition(".")[2]
        if len(self.endings) < MAX_ENDINGS:
            self.endings.add(last[:60])
        if self.lora_rank is None and "lora_A" in name and len(shape) == 2:
            self.lora_rank = shape[0]
        if last in _HELPERS or last.endswith(("_scales", "_scale_inv")) or "quant_state" in name:
            return
        if dtype in ("I32", "U32") and (last in _PACKED or dtype == "U32"):
            self.packed32 += count
        elif dtype == "U8":
            self.packed8 += count
        else:
            self.plain += count

    def merge(self, other: Weights) -> None:
        for name in ("tensors", "bytes", "plain", "packed32", "packed8"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.endings |= other.endings
        self.lora_rank = self.lora_rank or other.lora_rank
        for dtype, size in other.bytes_by_format.items():
            self.bytes_by_format[dtype] = self.bytes_by_format.get(dtype, 0) + size

    def parameters(self, bits: int | None) -> int:
        """How many weights there are, packed ones unpacked by the quantisation's `bits`."""
        per_word = 32 // bits if bits and bits in (2, 4, 8) else 32 / bits if bits else 1
        per_byte = 2 if bits == 4 else 1
        return self.plain + round(self.packed32 * per_word) + self.packed8 * per_byte


def read_safetensors(path: str) -> Weights:
    """Sums of one file given by its resolved path. Raises Unusable or OSError."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        return parse_safetensors(file, size)


def parse_safetensors(file: BinaryIO, size: int) -> Weights:
    """Sums of an open file of `size` bytes. Raises Unusable (zero_bytes, lfs_pointer, bad_header, truncated, …)."""
    if size == 0:
        raise Unusable("zero_bytes")
    start = file.read(8)
    if start == LFS_MARK[:8]:
        raise Unusable("lfs_pointer")
    if len(start) < 8:
        raise Unusable("truncated", size=size)
    length: int = struct.unpack("<Q", start)[0]
    if length > MAX_HEADER:
        # Text instead of a length gives an absurd number: then it is no safetensors file at all.
        raise Unusable("bad_header", what="length")
    if length > size - 8:
        raise Unusable("truncated", size=size, expected=8 + length)
    weights, end = Weights(), 0
    for name, entry in _entries(file, length):
        if name != "__metadata__":
            end = max(end, _add(weights, name, entry))
            if weights.tensors > MAX_TENSORS:
                raise Unusable("header_too_large", limit=MAX_TENSORS)
    expected = 8 + length + end
    if size < expected:
        raise Unusable("truncated", size=size, expected=whole(expected) or 0)
    if size > expected:
        raise Unusable("trailing_bytes", size=size, expected=expected)
    return weights


def _add(weights: Weights, name: str, entry: object) -> int:
    """Add one tensor; returns where its bytes end."""
    if not isinstance(entry, dict):
        raise Unusable("bad_header", what="entry")
    dtype, shape, offsets = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Unusable("bad_header", what="entry")
    size = offsets[1] - offsets[0]
    if dtype in BITS_OF:
        count = 1
        for dimension in shape:
            count *= dimension
        if size != -(-count * BITS_OF[dtype] // 8):
            raise Unusable("bad_header", what="shape")
    else:
        dtype = clean(dtype, 20)
    weights.add(name, dtype, shape, size)
    return offsets[1]


def _sizes(value: object) -> list[int] | None:
    """A short list of whole numbers, else None."""
    if not isinstance(value, list) or len(value) > 32:
        return None
    if all(type(item) is int and 0 <= item < MAX_INT for item in value):  # nearly always; `whole` is slower
        return value
    numbers = [n for item in value if (n := whole(item, low=0)) is not None]
    return numbers if len(numbers) == len(value) else None


class _Text:
    """The header's text, decoded as it is read; `text[pos:]` is what is not consumed yet."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self.file, self.left, self.text, self.pos = file, length, "", 0
        self.decoder = getincrementaldecoder("utf-8")("strict")

    def more(self) -> bool:
        """Read on; False at the end. One unconsumed entry may not outgrow MAX_ENTRY."""
        if len(self.text) - self.pos > MAX_ENTRY:
            raise Unusable("header_too_large", limit=MAX_ENTRY)
        # Doubling the window keeps repeated attempts at one long entry linear in its length.
        data = self.file.read(min(max(CHUNK, len(self.text) - self.pos), self.left))
        if not data:
            return False
        self.left -= len(data)
        self.text, self.pos = self.text[self.pos :] + self.decoder.decode(data), 0
        return True

    def next(self) -> str:
        """The next character that is not a space, unconsumed; "" at the end."""
        while True:
            while self.pos < len(self.text) and self.text[self.pos] in " \t\r\n":
                self.pos += 1
            if self.pos < len(self.text):
                return self.text[self.pos]
            if not self.more():
                return ""

    def expect(self, characters: str) -> str:
        found = self.next()
        if not found or found not in characters:
            raise Unusable("bad_header", what="json")
        self.pos += 1
        return found

    def value(self) -> Any:
        """The next JSON text or object, whole."""
        if self.next() not in ('"', "{"):
            raise Unusable("bad_header", what="json")
        while True:
            try:
                value, self.pos = _DECODER.raw_decode(self.text, self.pos)
                return value
            except RecursionError as exc:
                raise Unusable("bad_header", what="json") from exc
            except ValueError as exc:
                if not self.more():
                    raise Unusable("bad_header", what="json") from exc


_DECODER = json.JSONDecoder()


def _entries(file: BinaryIO, length: int) -> Iterator[tuple[str, Any]]:
    """Name and description of each tensor: of a small header all at once, which is much faster, else piece by piece."""
    if length > SMALL:
        yield from _streamed(file, length)
        return
    try:
        header = json.loads(file.read(length).decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise Unusable("bad_header", what="json") from exc
    if not isinstance(header, dict):
        raise Unusable("bad_header", what="json")
    yield from header.items()


def _streamed(file: BinaryIO, length: int) -> Iterator[tuple[str, Any]]:
    text = _Text(file, length)
    try:
        text.expect("{")
        if text.next() == "}":
            return
        while True:
            if text.next() != '"':
                raise Unusable("bad_header", what="json")
            name = text.value()
            text.expect(":")
            yield name, text.value()
            if text.expect(",}") == "}":
                return
    except UnicodeDecodeError as exc:
        raise Unusable("bad_header", what="json") from exc
