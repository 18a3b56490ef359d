"""When a door is of no use any more."""

import dataclasses
import fcntl
import json
import os
import signal
from pathlib import Path

import pytest

from panel.fleet.agent.procs import Ident
from panel.fleet.door import needed
from panel.fleet.door.host import Book
from tests.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The door's folder in that of an agent which does not run."""
    (tmp_path / "lock").touch()
    (tmp_path / "door").mkdir()
    return tmp_path / "door"


def write(folder: Path, process: Ident) -> None:
    run = {"host": "127.0.0.1", "port": 5, "process": process.dump()}
    (folder / "open.json").write_text(json.dumps({"accepts": [], "runs": {"a": run}}))


def test_needed_by_an_agent_or_an_engine(folder: Path) -> None:
    book = Book(folder / "open.json")
    assert not needed.is_needed(folder, book)
    me = Ident.of(os.getpid())
    assert me is not None
    write(folder, me)
    assert needed.is_needed(folder, book), "an engine runs, its agent is away"
    write(folder, dataclasses.replace(me, start=me.start + 1))
    assert not needed.is_needed(folder, book), "that engine has ended"
    with (folder.parent / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert needed.is_needed(folder, book), "an agent is there"
    (folder.parent / "lock").unlink()
    assert not needed.is_needed(folder, book)


def test_it_looks_without_being_in_the_way_of_an_agent(folder: Path) -> None:
    assert not needed.is_needed(folder, Book(folder / "open.json"))
    with (folder.parent / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_process_is_told_to_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    thread = needed.watch(folder, Book(folder / "open.json"), look_s=0.01, idle_s=0.05)
    until(lambda: told)
    thread.join(5)
    assert told == [(os.getpid(), signal.SIGTERM)]
