"""Proof that what a backup holds is what was there: a SHA-256 of each file in it, and a sum of the rows of each table.

The files' sums are the last member, `sums.json`; a file that was cut or changed is refused before anything is touched.
The tables' sums are taken in the very snapshot that pg_dump reads, and compared once the rows are in again.
"""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg import sql

from panel.core.database import own_connection

MANIFEST = "manifest.json"
SUMS = "sums.json"
PART = 1 << 20
# A file of a few MiB can be terabytes when it is unpacked. No manifest, sums or headers are longer than this, bytes:
MOST_MANIFEST, MOST_SUMS, MOST_HEADER = 1 << 20, 128 << 20, 1 << 20
MOST_FILES = 1_000_000

# Texts of values must not depend on who asks: times, floats and bytes are written in one way.
_SAME_WORDS = (
    "SET LOCAL timezone = 'UTC'",
    "SET LOCAL datestyle = 'ISO, YMD'",
    "SET LOCAL intervalstyle = 'postgres'",
    "SET LOCAL extra_float_digits = 1",
    "SET LOCAL bytea_output = 'hex'",
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
)
_TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    " AND NOT relispartition ORDER BY relname"
)
# In whatever order the rows come: the sum of 60 bits of each row's MD5.
_SUM = "SELECT count(*), coalesce(sum(('x' || left(md5(t::text), 15))::bit(60)::bigint), 0)::text FROM {} AS t"

Tables = dict[str, list[Any]]  # name → [rows, sum]


class Changed(Exception):
    """The file is not what was written; the text says which part."""


class TooLarge(Exception):
    """What it would be when it is unpacked; `bytes` says how much, at least."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.bytes = size


# --- files ------------------------------------------------------------------------------------------------------------
class _Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sum = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.sum.update(data)
        return data


class Writer:
    """Adds members and remembers their sums; `close` writes these."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self.archive = archive
        self.sums: dict[str, str] = {}

    def text(self, name: str, content: bytes, now: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = len(content), 0o600, now
        self._add(entry, io.BytesIO(content))

    def file(self, path: Path, name: str) -> None:
        """A file as long as it is now; what a log gains meanwhile is not in the database's word of it either."""
        with path.open("rb") as file:
            self._add(self.archive.gettarinfo(arcname=name, fileobj=file), file)

    def _add(self, entry: tarfile.TarInfo, file: IO[bytes]) -> None:
        hashed = _Hashed(file)
        self.archive.addfile(entry, hashed)  # type: ignore[arg-type]  # it only reads
        self.sums[entry.name] = hashed.sum.hexdigest()

    def close(self, now: int) -> None:
        self.text(SUMS, json.dumps(self.sums, indent=0).encode(), now)


class _Bounded:
    """What comes out of gzip, as much of it as is allowed at a time: a header can say that it is as long as a disk."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.left = file, MOST_HEADER

    def allow(self, size: int) -> None:
        self.left = size + MOST_HEADER

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise Changed("too_large")
        return data


@contextmanager
def _opened(path: Path) -> Iterator[tuple[tarfile.TarFile, _Bounded]]:
    with gzip.open(path) as whole:
        bounded = _Bounded(whole)  # type: ignore[arg-type]  # it is read only
        with tarfile.open(fileobj=bounded, mode="r|") as archive:  # type: ignore[call-overload]  # likewise
            yield archive, bounded


def manifest(path: Path) -> bytes:
    """The first member, which says what the file is; b"" where it is something else. Raises tarfile's errors."""
    try:
        with _opened(path) as (archive, bounded):
            entry = archive.next()
            if entry is None or entry.name != MANIFEST or not entry.isreg() or entry.size > MOST_MANIFEST:
                return b""
            bounded.allow(entry.size)
            content = archive.extractfile(entry)
            return content.read() if content is not None else b""
    except Changed:
        return b""


def check(path: Path, room: int) -> None:
    """Read the whole file once and compare. Raises Changed; TooLarge when it would take more than `room` bytes, before
    it is read so far; OSError and tarfile's errors as they come.

    A backup of before there were sums is read to its end all the same: gzip's own sum tells of a cut or a flipped bit.
    """
    found: dict[str, str] = {}
    said: dict[str, str] = {}
    size = 0
    try:
        with _opened(path) as (archive, bounded):
            while (entry := archive.next()) is not None:
                archive.members.clear()  # it would keep all of them
                size += entry.size
                if size > room:
                    raise TooLarge(size)
                if entry.issparse() or len(found) > MOST_FILES or (entry.name == SUMS and entry.size > MOST_SUMS):
                    raise Changed(entry.name[:200])
                bounded.allow(entry.size)
                if (content := archive.extractfile(entry)) is not None:
                    _read(entry, content, found, said)
                bounded.allow(0)
            while bounded.read(PART):  # tarfile leaves off where the members end, which is before gzip's sum
                continue
    except (zlib.error, EOFError, ValueError, UnicodeDecodeError, tarfile.ReadError) as exc:
        raise Changed(str(exc) or type(exc).__name__) from exc
    if said and (wrong := sorted(name for name in {*said, *found} if said.get(name) != found.get(name))):
        raise Changed(wrong[0])


def _read(entry: tarfile.TarInfo, content: IO[bytes], found: dict[str, str], said: dict[str, str]) -> None:
    if entry.name == SUMS:
        said |= json.load(content)
        return
    hashed = _Hashed(content)
    while hashed.read(PART):
        continue
    found[entry.name] = hashed.sum.hexdigest()


# --- tables -----------------------------------------------------------------------------------------------------------
@contextmanager
def snapshot() -> Iterator[tuple[str, Tables]]:
    """(the name of a snapshot for pg_dump, the sums of all tables in it); it is held as long as the block lasts."""
    with own_connection() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        found = sums_in(connection)
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        yield str(row[0]), found


def sums() -> Tables:
    """The sums of all tables now."""
    with own_connection() as connection, connection.transaction():
        return sums_in(connection)


def sums_in(connection: psycopg.Connection) -> Tables:
    for words in _SAME_WORDS:
        connection.execute(words)  # type: ignore[call-overload]  # constants of this module
    tables = [str(row[0]) for row in connection.execute(_TABLES).fetchall()]
    return {
        name: list(connection.execute(sql.SQL(_SUM).format(sql.Identifier(name))).fetchone() or ()) for name in tables
    }


def differing(expected: Tables, found: Tables) -> list[str]:
    """Tables that are not what they were."""
    return sorted(name for name in {*expected, *found} if list(expected.get(name, ())) != list(found.get(name, ())))
