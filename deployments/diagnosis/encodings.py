"""Bytes of a log that a person saved, as UTF-8. Pure; what comes in parts is decoded in parts.

Engines write UTF-8, and Berth keeps that as it is. Windows PowerShell saves what a program prints as UTF-16 (`>`,
`Tee-Object`), and some editors put a mark before UTF-8.
"""

from __future__ import annotations

import codecs

LOOKED = 512  # bytes at the beginning that tell the encoding where no mark does
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, ""),
)


class Utf8:
    """Feed it parts and take what it returns, then `end`. What cannot be decoded is replaced, and nothing raises."""

    def __init__(self) -> None:
        self._head: bytes | None = b""  # until the encoding is known
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, part: bytes) -> bytes:
        """The next bytes, as far as they are whole characters."""
        if self._head is None:
            return self._decoded(part)
        self._head += part
        return self._begin() if len(self._head) >= LOOKED else b""

    def end(self) -> bytes:
        """What is left."""
        rest = self._begin() if self._head is not None else b""
        return rest + (self._decoder.decode(b"", final=True).encode() if self._decoder else b"")

    def _begin(self) -> bytes:
        head, self._head = self._head or b"", None
        name, mark = encoding_of(head)
        if name:
            self._decoder = codecs.getincrementaldecoder(name)("replace")
        return self._decoded(head[mark:])

    def _decoded(self, part: bytes) -> bytes:
        # A half of a pair is no character; UTF-8 has no form of it.
        return self._decoder.decode(part).encode("utf-8", "replace") if self._decoder else part


def encoding_of(head: bytes) -> tuple[str, int]:
    """The encoding that the beginning tells, "" for one that can be read as it is; and how long its mark is."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name, len(mark)
    head = head[:LOOKED]
    even, odd = head[0::2].count(0), head[1::2].count(0)
    half = len(head) // 2
    if half and odd > 0.6 * half and even < 0.1 * half:  # Latin letters have no second byte
        return "utf-16-le", 0
    if half and even > 0.6 * half and odd < 0.1 * half:
        return "utf-16-be", 0
    return "", 0
