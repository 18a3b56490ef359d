"""Reader of GGUF headers (versions 2 and 3, both byte orders). Pure.

Long lists (the tokenizer's words) are walked over, never built. Every length is compared with what is left of the file
before anything is read or allocated, and no more than MAX_READ bytes are read in all, so a hostile file costs a bounded
time and memory. Whatever is wrong raises `Unusable` with a code; nothing else is raised but OSError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import BinaryIO

from models_catalog.inspect.gguf_types import TENSOR_TYPES
from models_catalog.inspect.reading import LFS_MARK, Unusable, open_regular

MAGIC = b"GGUF"
MAX_READ = 64 << 20  # bytes; the largest real vocabularies (262k words with merges) need about 16 MiB
CHUNK = 256 << 10
MAX_KEYS = 16384
MAX_TENSORS = 65536
MAX_NAME = 4096
MAX_TEXT = 1 << 20  # of one kept text: chat templates reach 30 KB
MAX_KEPT = 4 << 20  # of all kept texts together
MAX_LIST = 1024  # numbers of one kept list (per-layer values)
MAX_LISTED = 1 << 18  # numbers of all kept lists together
MAX_WORDS = 1 << 21  # texts in all lists; the largest real tokenizers have 780,000 words and merges
MAX_KEY_BYTES = 2 << 20  # of all keys together
TABLES = ("rope_freqs.", "rope_factors_")  # tensors that a configuration could tell as well
MAX_DEPTH = 3  # lists within lists
MAX_NESTED = 65536  # lists within lists, in the whole header

_U8, _I8, _U16, _I16, _U32, _I32, _F32, _BOOL, _TEXT, _LIST, _U64, _I64, _F64 = range(13)
_CODES = {_U8: "B", _I8: "b", _U16: "H", _I16: "h", _U32: "I", _I32: "i", _F32: "f", _BOOL: "B"} | {
    _U64: "Q",
    _I64: "q",
    _F64: "d",
}

Scalar = int | float | str | bool
Value = Scalar | tuple[int | float | bool, ...]


@dataclass(frozen=True)
class GgufHeader:
    """What the header of one file says. `expected_size` is the least size of a whole file; None: a type is unknown."""

    version: int
    big_endian: bool
    values: dict[str, Value]
    lists: dict[str, int]  # key → number of items of every list, kept or not
    tensors: int
    elements: int
    type_bytes: dict[str, int]
    unknown_types: tuple[int, ...]
    expected_size: int | None
    bytes_read: int
    embedding_shape: tuple[int, ...] = ()
    has_output: bool = False  # a matrix of its own for the answer's words; without it the word vectors serve
    lora_rank: int | None = None
    buffers: int = 0  # of the elements, those that are tables and no weights

    @property
    def parameters(self) -> int:
        return self.elements - self.buffers

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""


class _Window:
    """Sequential reading through a window of at most a chunk (or one text); skipping seeks instead of reading."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.buffer, self.pos, self.base, self.read = b"", 0, 0, 0

    @property
    def at(self) -> int:
        return self.base + self.pos

    @property
    def left(self) -> int:
        return self.size - self.at

    def need(self, count: int) -> None:
        """Make `count` bytes available in the window."""
        have = len(self.buffer) - self.pos
        if have >= count:
            return
        if count > self.left:
            raise Unusable("truncated", size=self.size)
        kept, self.base = self.buffer[self.pos :], self.at
        self.file.seek(self.base + len(kept))
        more = self.file.read(max(count - have, CHUNK))
        self.read += len(more)
        if self.read > MAX_READ:
            raise Unusable("header_too_large", limit=MAX_READ)
        self.buffer, self.pos = kept + more, 0
        if len(self.buffer) < count:  # the file shrank under us
            raise Unusable("truncated", size=self.size)

    def skip(self, count: int) -> None:
        if count > self.left:
            raise Unusable("truncated", size=self.size)
        self.pos += count
        if self.pos > len(self.buffer):
            self.base, self.pos, self.buffer = self.at, 0, b""

    def take(self, count: int) -> bytes:
        self.need(count)
        data = self.buffer[self.pos : self.pos + count]
        self.pos += count
        return data


@dataclass
class _Header:
    window: _Window
    order: str
    values: dict[str, Value] = field(default_factory=dict)
    lists: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    listed: int = 0
    key_bytes: int = 0
    words: int = 0
    nested: int = 0

    def number(self, code: str) -> int | float:
        size = struct.calcsize("<" + code)
        result: int | float = struct.unpack(self.order + code, self.window.take(size))[0]
        return result

    def count(self, code: str = "Q") -> int:
        return int(self.number(code))

    def name(self) -> str:
        length = self.count()
        if length > MAX_NAME:
            raise Unusable("bad_header", what="name")
        return self.window.take(length).decode("utf-8", "replace")

    def text(self, key: str) -> None:
        length = self.count()
        if length > MAX_TEXT or self.kept + length > MAX_KEPT:
            self.window.skip(length)
            self.lists[key] = length  # known to exist, too long to keep
            return
        self.kept += length
        self.values[key] = self.window.take(length).decode("utf-8", "replace")

    def pair(self) -> None:
        key, kind = self.name(), self.count("I")
        self.key_bytes += len(key)
        if self.key_bytes > MAX_KEY_BYTES:
            raise Unusable("header_too_large", limit=MAX_KEY_BYTES)
        if kind == _TEXT:
            self.text(key)
        elif kind == _LIST:
            self.list(key)
        elif kind in _CODES:
            number = self.number(_CODES[kind])
            self.values[key] = bool(number) if kind == _BOOL else number
        else:
            raise Unusable("bad_header", what="type", value=kind)

    def list(self, key: str, depth: int = 0) -> None:
        kind, count = self.count("I"), self.count()
        if depth == 0:
            self.lists[key] = count
        if kind in _CODES:
            self._numbers(key if depth == 0 else "", kind, count)
        elif kind == _TEXT:
            self._skip_texts(count)
        elif kind == _LIST and depth < MAX_DEPTH:
            self.nested += count
            if self.nested > MAX_NESTED:
                raise Unusable("bad_header", what="count")
            for _ in range(count):
                self.list("", depth + 1)
        else:
            raise Unusable("bad_header", what="type", value=kind)

    def _numbers(self, key: str, kind: int, count: int) -> None:
        size = count * struct.calcsize("<" + _CODES[kind])
        if not key or count > MAX_LIST or self.listed + count > MAX_LISTED:
            self.window.skip(size)
            return
        self.listed += count
        numbers = struct.unpack(f"{self.order}{count}{_CODES[kind]}", self.window.take(size))
        self.values[key] = tuple(bool(n) for n in numbers) if kind == _BOOL else numbers

    def _skip_texts(self, count: int) -> None:
        """Walk over `count` texts; the inner loop is the whole cost of a header, so it is kept bare."""
        window, unpack = self.window, struct.Struct(self.order + "Q").unpack_from
        if count * 8 > window.left:
            raise Unusable("truncated", size=window.size)
        self.words += count
        if self.words > MAX_WORDS:
            raise Unusable("header_too_large", limit=MAX_WORDS)
        while count:
            window.need(8)
            buffer, pos, last = window.buffer, window.pos, len(window.buffer) - 8
            while count and pos <= last:
                pos += 8 + unpack(buffer, pos)[0]
                count -= 1
            window.skip(pos - window.pos)


@dataclass
class _Tensors:
    elements: int = 0
    end: int = 0  # of the furthest tensor, from the start of the data
    type_bytes: dict[str, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    embedding: tuple[int, ...] = ()
    output: bool = False
    lora_rank: int | None = None
    buffers: int = 0

    def add(self, name: str, shape: tuple[int, ...], kind: int, offset: int, room: int) -> None:
        count = 1
        for size in shape:
            count *= size
        known = TENSOR_TYPES.get(kind)
        if known is None:
            self.unknown.add(kind)
            if count > room * 64:  # no format stores more than 64 weights in a byte
                raise Unusable("truncated", size=room)
        else:
            title, block, size = known
            if count % block:
                raise Unusable("bad_header", what="shape")
            need = count // block * size
            self.type_bytes[title] = self.type_bytes.get(title, 0) + need
            self.end = max(self.end, offset + need)
        self.elements += count
        if name.startswith(TABLES):
            self.buffers += count
        if name == "token_embd.weight":
            self.embedding = shape
        self.output = self.output or name == "output.weight"
        if self.lora_rank is None and name.endswith(".lora_a") and len(shape) > 1:
            self.lora_rank = shape[1]


def read_gguf(path: str) -> GgufHeader:
    """The header of a file given by its resolved path. Raises Unusable or OSError."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        return parse_gguf(file, size)


def parse_gguf(file: BinaryIO, size: int) -> GgufHeader:
    """The header of an open file of `size` bytes. Raises Unusable."""
    window = _Window(file, size)
    order, version = _begin(window)
    head = _Header(window, order)
    tensor_count, key_count = head.count(), head.count()
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise Unusable("bad_header", what="count")
    if tensor_count * 24 + key_count * 13 > window.left:  # what the smallest tensor entries and pairs take
        raise Unusable("truncated", size=size)
    for _ in range(key_count):
        head.pair()
    tensors = _Tensors()
    for _ in range(tensor_count):
        _tensor(head, tensors)
    expected = _expected_size(head, tensors) if tensor_count else window.at
    return GgufHeader(
        version=version,
        big_endian=order == ">",
        values=head.values,
        lists=head.lists,
        tensors=tensor_count,
        elements=tensors.elements,
        type_bytes=tensors.type_bytes,
        unknown_types=tuple(sorted(tensors.unknown)),
        expected_size=None if tensors.unknown else expected,
        bytes_read=window.read,
        embedding_shape=tensors.embedding,
        has_output=tensors.output,
        lora_rank=tensors.lora_rank,
        buffers=tensors.buffers,
    )


def _begin(window: _Window) -> tuple[str, int]:
    if window.size == 0:
        raise Unusable("zero_bytes")
    window.need(min(window.size, len(LFS_MARK)))
    if window.buffer.startswith(LFS_MARK):
        raise Unusable("lfs_pointer")
    if not window.buffer.startswith(MAGIC[: window.size]):
        raise Unusable("not_gguf")
    if window.size < 24:
        raise Unusable("truncated", size=window.size)
    window.skip(4)
    raw = window.take(4)
    # The byte order is not written down: a version whose low half is empty was written the other way round.
    order = ">" if raw[:2] == b"\0\0" and raw != b"\0\0\0\0" else "<"
    version: int = struct.unpack(order + "I", raw)[0]
    if version not in (2, 3):
        raise Unusable("gguf_version", version=version)
    return order, version


def _tensor(head: _Header, tensors: _Tensors) -> None:
    name, dimensions = head.name(), head.count("I")
    if dimensions > 8:
        raise Unusable("bad_header", what="shape")
    shape = tuple(head.count() for _ in range(dimensions))
    kind, offset = head.count("I"), head.count()
    tensors.add(name, shape, kind, offset, head.window.size)


def _expected_size(head: _Header, tensors: _Tensors) -> int:
    alignment = head.values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
        raise Unusable("bad_header", what="alignment")
    start = -(-head.window.at // alignment) * alignment
    return start + tensors.end
