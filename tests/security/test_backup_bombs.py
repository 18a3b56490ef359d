"""A backup that somebody handed over: small, and as large as a disk when it is unpacked. It costs neither memory nor disk."""

import gzip
import io
import json
import tarfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from panel import backup, backup_proof

ZEROS = 1 << 20
GIB = 1 << 30
MOST_MEMORY = 64 << 20  # bytes, of everything that a bomb may cost


class Nothing:
    """So many zeros, as a file."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        size = min(size if size >= 0 else ZEROS, self.left)
        self.left -= size
        return bytes(size)


def archive(path: Path, *entries: tuple[str, int], before: bytes = b"{}", raw: bytes = b"", after: int = 0) -> Path:
    """`before` is the manifest, then come files of zeros, then raw bytes of tar, then zeros after its end."""
    with gzip.open(path, "wb", compresslevel=1) as packed:
        with tarfile.open(fileobj=packed, mode="w|") as made:
            for name, content in [("manifest.json", before), ("database.dump", b"x")]:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                made.addfile(entry, io.BytesIO(content))
            for name, size in entries:
                entry = tarfile.TarInfo(name)
                entry.size = size
                made.addfile(entry, Nothing(size))  # type: ignore[arg-type]  # it is read only
            if raw:
                made.fileobj.write(raw)  # type: ignore[union-attr]
        for _part in range(after >> 20):
            packed.write(bytes(ZEROS))
    return path


def header(name: str, kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def refused(path: Path, room: int, kind: type[Exception]) -> Exception:
    """What `check` says, at no cost worth naming."""
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(kind) as caught:
        backup_proof.check(path, room)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < MOST_MEMORY and time.process_time() - start < 20
    return caught.value


def test_a_log_that_is_larger_than_the_disk(tmp_path: Path) -> None:
    found = refused(archive(tmp_path / "b", ("logs/a", 200 << 20)), 100 << 20, backup_proof.TooLarge)
    assert isinstance(found, backup_proof.TooLarge) and found.bytes > 200 << 20


def test_many_logs_that_are_larger_together(tmp_path: Path) -> None:
    refused(archive(tmp_path / "b", *[(f"logs/{n}", 10 << 20) for n in range(12)]), 100 << 20, backup_proof.TooLarge)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_is_endless(tmp_path: Path, kind: bytes) -> None:
    """tarfile reads such a header whole into memory."""
    bomb = archive(tmp_path / "b", raw=header("x", kind, 100 * GIB), after=300 << 20)
    refused(bomb, GIB, backup_proof.Changed)


def test_zeros_after_the_end(tmp_path: Path) -> None:
    refused(archive(tmp_path / "b", after=300 << 20), GIB, backup_proof.Changed)


def test_a_file_of_holes(tmp_path: Path) -> None:
    """GNU's sparse files take nothing in the archive, and all of it where they are read."""
    refused(
        archive(tmp_path / "b", raw=header("logs/a", tarfile.GNUTYPE_SPARSE, 0) + bytes(1024)),
        GIB,
        backup_proof.Changed,
    )


def test_sums_without_end(tmp_path: Path) -> None:
    refused(archive(tmp_path / "b", ("sums.json", 200 << 20)), GIB, backup_proof.Changed)


@pytest.mark.parametrize("content", [b" " * (2 << 20), b"[" * 1_000_000, b"[]", b"7", b"\xff", b'{"format": 2'])
def test_a_manifest_of_any_kind(tmp_path: Path, content: bytes) -> None:
    path = archive(tmp_path / "b", before=content)
    with pytest.raises(backup.BackupError, match="no backup that this version"):
        backup._manifest(backup_proof.manifest(path))


def test_a_sound_one_passes(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with tarfile.open(path, "w:gz") as made:
        writer = backup_proof.Writer(made)
        writer.text("manifest.json", json.dumps({"format": 2}).encode(), 0)
        writer.text("logs/" + "long/" * 60 + "ä", b"x" * 5_000_000, 0)
        writer.close(0)
    assert json.loads(backup_proof.manifest(path)) == {"format": 2}
    backup_proof.check(path, 6_000_000)
    with pytest.raises(backup_proof.TooLarge):
        backup_proof.check(path, 4_000_000)


def test_restore_says_so_and_touches_nothing(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.BERTH_DATA = tmp_path / "data"
    settings.BERTH_DATA.mkdir()
    monkeypatch.setattr(backup, "room", lambda: 100 << 20)
    monkeypatch.setattr(backup, "_bring_in", lambda *args: pytest.fail("it was brought in"))
    told = json.dumps({"format": 2, "migrations": [], "key": "k", "berth": "0.1.0", "made_at": "2026-12-01"}).encode()
    bomb = archive(tmp_path / "b", ("logs/a", 150 << 20), before=told)
    with pytest.raises(backup.BackupError) as caught:
        backup.restore(bomb, replace=True)
    assert caught.value.code == "backup_too_large" and "100" in str(caught.value)
    assert list(settings.BERTH_DATA.iterdir()) == []
