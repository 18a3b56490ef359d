"""What makes two copies the same model: names and sizes of its files and the first bytes of each weight file. Pure.

Weights are never read in full (that would take minutes); a damaged byte in the middle of a file is not seen here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from models_catalog.inspect.listing import LocalFile
from models_catalog.inspect.reading import open_regular

HEAD = 64 << 10  # bytes hashed of each file: the beginning of a header tells formats and revisions apart


def fingerprint(files: Iterable[LocalFile]) -> str:
    """SHA-256 in hex. A file that cannot be read counts with its name and size alone."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda one: one.name):
        digest.update(f"{len(file.name)}:".encode() + file.name.encode("utf-8", "surrogateescape"))
        digest.update(f"|{file.size}|".encode())
        try:
            with open_regular(file.real) as stream:
                digest.update(hashlib.sha256(stream.read(HEAD)).digest())
        except OSError:
            digest.update(b"unread")
    return digest.hexdigest()
