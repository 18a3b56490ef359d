"""The files of a backup: they come in after the database and stay within their folders."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from panel import backup


def archive_of(path: Path, names: list[str]) -> tarfile.TarFile:
    with tarfile.open(path, "w:gz") as made:
        for name in ["database.dump", *names]:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            made.addfile(entry, io.BytesIO(name.encode()))
    return tarfile.open(path)


@pytest.fixture
def data(tmp_path: Path, settings: Any) -> Path:
    folder = tmp_path / "data"
    (folder / "logs").mkdir(parents=True)
    (folder / "secret.key").write_text("kept")
    (folder / "logs" / "a").write_text("older")
    settings.BERTH_DATA = folder
    return folder


def test_no_file_gets_out_of_its_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "_replace_database", lambda dump, tables: None)
    names = [
        "logs/a",
        "logs/b/c",
        "logs/../secret.key",
        "logs/../../outside",
        "files/../up.lock",
        "engines/x",
        "/logs/y",
    ]
    with archive_of(tmp_path / "b.tar.gz", names) as archive:
        backup._bring_in(archive, {})
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"b.tar.gz", "data/secret.key", "data/logs/a", "data/logs/b/c"}
    assert (data / "secret.key").read_text() == "kept" and (data / "logs" / "a").read_text() == "logs/a"


def test_a_disk_that_gets_full_leaves_all_as_it_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[Path] = []
    monkeypatch.setattr(backup, "_replace_database", lambda dump, tables: replaced.append(dump))
    copy = tarfile.TarFile.makefile

    def full(self: Any, entry: Any, path: Any) -> None:
        if entry.name == "logs/b":
            raise OSError(28, "No space left on device")
        copy(self, entry, path)

    monkeypatch.setattr(tarfile.TarFile, "makefile", full)
    with archive_of(tmp_path / "b.tar.gz", ["logs/a", "logs/b"]) as archive, pytest.raises(OSError, match="No space"):
        backup._bring_in(archive, {})
    assert not replaced and (data / "logs" / "a").read_text() == "older"
    assert sorted(path.name for path in data.iterdir()) == ["logs", "secret.key"]
