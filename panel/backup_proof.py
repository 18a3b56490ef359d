"""Proof that what a backup holds is what was there: a SHA-256 of each file in it, and a sum of the rows of each table.

The files' sums are the last member, `sums.json`; a file that was cut or changed is refused before anything is touched.
The tables' sums are taken in the very snapshot that pg_dump reads, and compared once the rows are in again.
"""

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

SUMS = "sums.json"
PART = 1 << 20

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


def check(path: Path) -> None:
    """Read the whole file once and compare. Raises Changed; OSError and tarfile's errors as they come.

    A backup of before there were sums is read to its end all the same: gzip's own sum tells of a cut or a flipped bit.
    """
    found: dict[str, str] = {}
    said: dict[str, str] = {}
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r|gz") as archive:
            for entry in archive:
                content = archive.extractfile(entry)
                if content is None:
                    continue
                if entry.name == SUMS:
                    said = json.load(content)
                    continue
                hashed = _Hashed(content)
                while hashed.read(PART):
                    continue
                found[entry.name] = hashed.sum.hexdigest()
        _to_the_end(path)
    except (zlib.error, EOFError, ValueError, UnicodeDecodeError, tarfile.ReadError) as exc:
        raise Changed(str(exc) or type(exc).__name__) from exc
    if said and (wrong := sorted(name for name in {*said, *found} if said.get(name) != found.get(name))):
        raise Changed(wrong[0])


def _to_the_end(path: Path) -> None:
    """tarfile leaves off where the members end, which is before gzip's sum."""
    import gzip

    with gzip.open(path) as whole:
        while whole.read(PART):
            continue


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
