"""Deleting copies of models: what goes, what stays, and that nothing outside is touched."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from panel.fleet.agent import delete, guard
from panel.fleet.agent.download_order import OURS
from panel.fleet.wire import DeleteTask


def cached(root: Path, revisions: dict[str, dict[str, bytes]], repo: str = "models--acme--tiny") -> Path:
    """A repository in the cache: its revisions with their files."""
    place = root / repo
    (place / "blobs").mkdir(parents=True)
    (place / "refs").mkdir()
    for revision, files in revisions.items():
        (place / "snapshots" / revision).mkdir(parents=True)
        for name, data in files.items():
            blob = place / "blobs" / data.hex()[:64].ljust(40, "0")
            blob.write_bytes(data * 5000)
            (place / "snapshots" / revision / name).symlink_to(os.path.relpath(blob, place / "snapshots" / revision))
    (place / "refs" / "main").write_text(next(iter(revisions)))
    return place


def refused(path: object, root: Path, **more: bool) -> str:
    with pytest.raises(guard.Refused) as caught:
        limits = delete.Limits([root], **more)
        delete.check(DeleteTask(paths=[str(path)]), limits)
        delete.delete(delete.place_of(str(path), limits))
    return caught.value.refusal.code


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_snapshot_goes_with_the_contents_that_no_other_one_needs(tmp_path: Path) -> None:
    place = cached(tmp_path, {"one": {"a.json": b"A", "w.gguf": b"B"}, "two": {"a.json": b"A", "w.gguf": b"C"}})
    (place / "refs" / "other").write_text("two")
    freed = delete.delete(place / "snapshots" / "one")
    assert freed >= 5000 and names(place / "snapshots") == ["two"] and names(place / "refs") == ["other"]
    assert names(place / "blobs") == sorted(data.hex().ljust(40, "0") for data in (b"A", b"C"))
    assert (place / "snapshots" / "two" / "a.json").read_bytes() == b"A" * 5000
    delete.delete(place / "snapshots" / "two")
    assert names(tmp_path) == []


def test_one_quantisation_of_several(tmp_path: Path) -> None:
    parts = {f"big-0000{n}-of-00002.gguf": bytes([n]) for n in (1, 2)}
    place = cached(tmp_path, {"one": {"small.gguf": b"S", **parts}})
    delete.delete(place / "snapshots" / "one" / "big-00001-of-00002.gguf")
    assert names(place / "snapshots" / "one") == ["small.gguf"] and len(names(place / "blobs")) == 1
    delete.delete(place / "snapshots" / "one" / "small.gguf")
    assert names(tmp_path) == []


def test_plain_folders_and_files(tmp_path: Path) -> None:
    model = tmp_path / "acme" / "tiny"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}" * 5000)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (model / "sub" / "link").symlink_to(outside)
    assert delete.delete(model) > 0 and names(tmp_path / "acme") == [] and names(outside) == ["precious"]
    (tmp_path / "other").symlink_to(outside)
    assert delete.delete(tmp_path / "other") == 0 and names(outside) == ["precious"]
    for name in ("x.gguf", "y-00001-of-00002.gguf", "y-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"x" * 9000)
    assert delete.delete(tmp_path / "y-00001-of-00002.gguf") >= 18000 and names(tmp_path) == ["acme", "x.gguf"]
    assert delete.delete(tmp_path / "not there") == 0


def test_what_a_kill_left_goes_with_the_next(tmp_path: Path) -> None:
    left = tmp_path / f"{delete.GONE}old"
    left.mkdir()
    (tmp_path / "x.gguf").write_bytes(b"x")
    delete.delete(tmp_path / "x.gguf")
    assert names(tmp_path) == []


def test_names_of_full_length(tmp_path: Path) -> None:
    for name in ("x" * 250 + ".gguf", "\u6a21" * 82 + "abc.gguf"):
        assert len(name.encode()) >= 254
        (tmp_path / name).write_bytes(b"x")
        delete.delete(tmp_path / name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        delete.delete(tmp_path / name)
        assert names(tmp_path) == []


def test_several_at_once_in_one_folder(tmp_path: Path) -> None:
    """Each finishes what a kill left, and so takes part in what another one deletes."""
    wrong: list[Exception] = []

    def go(folder: Path) -> None:
        try:
            delete.delete(folder)
        except Exception as exc:
            wrong.append(exc)

    for _turn in range(5):
        folders = [tmp_path / f"m{number}" for number in range(6)]
        for folder in folders:
            folder.mkdir()
            for number in range(100):
                (folder / f"{number}.bin").write_text("")
        threads = [threading.Thread(target=go, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == [] and names(tmp_path) == []


def test_nothing_else_goes(tmp_path: Path) -> None:
    root = tmp_path / "models"
    place = cached(root, {"one": {"a.json": b"A"}})
    (root / "many" / "tiny").mkdir(parents=True)
    (root / "many" / "tiny" / "config.json").write_text("{}")
    (root / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere.gguf").write_text("mine")
    (root / "out").symlink_to(tmp_path)
    for path in (root, tmp_path, "/etc", root / ".." / "elsewhere.gguf", root / "out" / "elsewhere.gguf", "models/x"):
        assert refused(path, root) == "delete.path_not_allowed", path
    blob = next((place / "blobs").iterdir())
    for path in (root / "many", root / "notes.txt", place / "snapshots", place / "refs", blob):
        assert refused(path, root) == "delete.not_a_model", path
    assert refused(root / "many" / "tiny", root, allowed=False) == "delete.forbidden"
    assert (root / "many" / "tiny" / "config.json").exists() and (tmp_path / "elsewhere.gguf").exists()


def test_other_programs_keep_theirs(tmp_path: Path) -> None:
    store = tmp_path / "ollama"
    (store / "manifests").mkdir(parents=True)
    (store / "blobs").mkdir()
    (store / "blobs" / "sha256-aa").write_text("x")
    assert refused(store / "blobs" / "sha256-aa", tmp_path, programs=True) == "delete.of_ollama"
    folder = tmp_path / ".lmstudio" / "models" / "acme" / "tiny"
    folder.mkdir(parents=True)
    (folder / "x.gguf").write_text("x")
    assert refused(folder / "x.gguf", tmp_path) == "delete.of_program"
    delete.check(DeleteTask(paths=[str(folder / "x.gguf")]), delete.Limits([tmp_path], programs=True))


def test_what_a_run_uses_stays(tmp_path: Path) -> None:
    place = cached(tmp_path, {"one": {"w.gguf": b"B"}, "two": {"w.gguf": b"B"}})
    file = place / "snapshots" / "one" / "w.gguf"
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    limits = delete.Limits([tmp_path])

    def used(path: Path, *argv: str) -> bool:
        try:
            delete.check(DeleteTask(paths=[str(path)]), limits, [["/opt/vllm", "serve", *argv]])
        except guard.Refused as exc:
            return exc.refusal.code == "delete.in_use"
        return False

    assert used(file, str(file)) and used(file.parent, str(file)) and used(place, str(file))
    assert used(tmp_path / "tiny", "/models/x", "--tokenizer", str(tmp_path / "tiny"))
    assert used(tmp_path / "tiny" / "x.gguf", str(tmp_path / "tiny"))
    assert not used(place / "snapshots" / "two", str(file)) and not used(tmp_path / "tiny", str(file))
    assert not used(tmp_path / "tiny", str(tmp_path))  # a root that an option names is no model


def test_a_download_that_writes_there_keeps_it(tmp_path: Path) -> None:
    place = cached(tmp_path, {"one": {"a.json": b"A"}})
    (tmp_path / "tiny" / OURS).mkdir(parents=True)
    locks = [tmp_path / ".locks" / place.name / "berth.lock", tmp_path / "tiny" / OURS / "lock"]
    for path, lock in zip((place / "snapshots" / "one", tmp_path / "tiny"), locks, strict=True):
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert refused(path, tmp_path) == "delete.in_use"
        delete.delete(path)
        assert not path.exists()
