"""The files of one folder, resolved inside the fence. Pure.

A symbolic link is followed only when its target lies in the allowed folders; otherwise it becomes a problem.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from models_catalog.facts import Problem
from models_catalog.inspect.reading import Fence, clean

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)


@dataclass(frozen=True)
class LocalFile:
    """A regular file: its name in the folder, its resolved path, its size in bytes, and what tells it from others.

    `stamp` changes whenever the content could have: device, inode, time of change (ns) and of the last write.
    """

    name: str
    real: str
    size: int
    stamp: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def identity(self) -> object:
        """Equal for two names (hard or symbolic links) of one file."""
        return self.stamp[:2] if self.stamp[1] else self.real


def local_file(name: str, real: str, info: os.stat_result) -> LocalFile:
    return LocalFile(name, real, info.st_size, (info.st_dev, info.st_ino, info.st_ctime_ns, info.st_mtime_ns))


@dataclass
class Listing:
    """The regular files of a folder by name, and the names of its sub-folders."""

    path: str
    files: dict[str, LocalFile] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def has(self, name: str) -> bool:
        return name in self.files

    def named(self, *, end: str, start: str = "") -> list[LocalFile]:
        """Files whose name ends (and begins) like this, letter case ignored, sorted by name."""
        return [
            file
            for name, file in sorted(self.files.items())
            if name.lower().endswith(end) and name.lower().startswith(start)
        ]

    def tokenizer_file(self) -> str:
        """The main tokenizer file, "" when there is none. vocab.json counts only together with merges.txt."""
        for name in TOKENIZER_FILES:
            if name in self.files and (name != "vocab.json" or "merges.txt" in self.files):
                return name
        return next((file.name for file in self.named(end=".tiktoken")), "")


def list_folder(path: str, names: Iterable[os.DirEntry[str]], fence: Fence) -> Listing:
    """Sort the entries of an open folder into files and sub-folders. Entries that vanish meanwhile are left out."""
    listing = Listing(path)
    real_folder = os.path.realpath(path)
    for entry in names:
        try:
            if entry.is_symlink():
                _follow(entry, listing, fence)
            elif entry.is_dir(follow_symlinks=False):
                listing.folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                info = entry.stat(follow_symlinks=False)
                real = f"{real_folder.rstrip('/')}/{entry.name}"
                listing.files[entry.name] = local_file(entry.name, real, info)
        except OSError:
            listing.problems.append(Problem(code="cannot_read", params={"file": clean(entry.name)}))
    listing.folders.sort()
    return listing


def _follow(entry: os.DirEntry[str], listing: Listing, fence: Fence) -> None:
    real = os.path.realpath(entry.path)
    name = clean(entry.name)
    if not fence.holds(real):
        listing.problems.append(Problem(code="link_outside", params={"file": name}))
        return
    try:
        info = os.stat(real, follow_symlinks=False)  # noqa: PTH116  (hot path, strings)
    except OSError:
        listing.problems.append(Problem(code="broken_link", params={"file": name}))
        return
    if stat.S_ISDIR(info.st_mode):
        listing.folders.append(entry.name)
    elif stat.S_ISREG(info.st_mode):
        listing.files[entry.name] = local_file(entry.name, real, info)
