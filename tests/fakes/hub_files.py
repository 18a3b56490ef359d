"""What the fake hub holds, what it was asked for, and how it can fail."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Fault:
    """What goes wrong with one download: after `after` bytes of the answer, where that makes sense.

    drop: the connection breaks. short: it is closed, in order, too early. stall: nothing more comes. wrong: one byte is
    another. slow: `rate` bytes per second. status: an error, with `headers`. whole: the server knows no ranges.
    other_size: another file than was announced. silent: no answer at all. `where`: hub, cdn or "" for both.
    """

    kind: str
    after: int = 0
    status: int = 500
    rate: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    where: str = ""
    path: str = ""  # only of files whose path ends so


@dataclass
class Ask:
    """One request for content: [start, end) was asked for, `sent` bytes of it went out."""

    where: str
    repo: str
    path: str
    start: int
    end: int
    token: str = ""
    sent: int = 0
    status: int = 0


@dataclass
class File:
    path: str
    data: bytes | Path
    lfs: bool
    sha256: str = ""
    git: str = ""

    def __post_init__(self) -> None:
        data = self.bytes
        self.sha256 = hashlib.sha256(data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(data)}\n".encode()
        self.git = git_sum(pointer if self.lfs else data)
        self.size = len(data)

    @property
    def bytes(self) -> bytes:
        return self.data.read_bytes() if isinstance(self.data, Path) else self.data

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git


def git_sum(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


@dataclass
class Repo:
    name: str
    files: dict[str, File]
    commit: str
    gated: str = ""  # "", "auto" or "manual"
    private: bool = False
    allowed: set[str] = field(default_factory=set)  # tokens that may read it, when it is gated or private
    facts: dict[str, Any] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)  # branch or tag → commit
