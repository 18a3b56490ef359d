"""What the agent remembers survives any kill; what is torn counts as not there."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from panel.fleet.agent import journal as module
from panel.fleet.agent.journal import Busy, Final, Journal, Record, is_job_id, read_json, write_json


def new_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path)
    made.lock()
    return made


def test_one_agent_per_folder(journal: Journal) -> None:
    with pytest.raises(Busy):
        Journal(journal.folder).lock()
    journal.close()
    Journal(journal.folder).lock()


def test_records_come_back(journal: Journal) -> None:
    record = Record(new_id(), "engine", accepted_at=2.0, argv=["a"], port=5, shim=[1, 2, "b"])
    record.final = Final("ended", 3.0, exit_code=1, refusal={"code": "x", "params": {}})
    older = Record(new_id(), "scan", accepted_at=1.0)
    journal.save(record)
    journal.save(older, durable=True)
    assert journal.records() == [older, record]
    assert (journal.folder_of(record.id) / "job.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"id": "../../etc"}', '{"id": "%s", "final": {"nonsense": 1}}', "\0"]
)
def test_torn_records(journal: Journal, content: str) -> None:
    """Nothing ran in the folder: it is dropped. Something did: it counts, with an unknown end."""
    idle, ran = new_id(), new_id()
    for job_id in (idle, ran):
        journal.folder_of(job_id).mkdir()
        (journal.folder_of(job_id) / "job.json").write_text(content.replace("%s", job_id))
    write_json(journal.folder_of(ran) / "run.json", {"engine": [1, 2, "boot"]})
    assert [record.id for record in journal.records()] == [ran]
    assert not journal.folder_of(idle).exists()


def test_a_kill_while_a_file_is_replaced_leaves_the_old_one(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.save_rev(5)

    def killed(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.save_rev(6)
    assert journal.load_rev() == 5
    (journal.folder / "state.json").write_text('{"rev": "x"}')
    assert journal.load_rev() == 0


def test_tombstones_last_and_are_bounded(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_TOMBSTONES", 50)
    ids = [new_id() for _ in range(200)]
    for job_id in ids:
        journal.bury([job_id])
    journal.bury(ids[-1:])
    lines = [line for line in (journal.folder / "tombstones").read_text().split("\n") if line]
    assert len(lines) <= 60 and lines[-1] == ids[-1]
    journal.close()
    again = Journal(journal.folder)
    again.lock()
    assert again.buried(ids[-1]) and again.buried(ids[-50]) and not again.buried(ids[0])


def test_a_torn_tombstone_swallows_no_other(journal: Journal) -> None:
    first, second = new_id(), new_id()
    journal.bury([first])
    with (journal.folder / "tombstones").open("a") as file:
        file.write(new_id()[:20])
    journal.bury([second])
    journal.close()
    again = Journal(journal.folder)
    again.lock()
    assert again.buried(first) and again.buried(second)


ONE = "5b0c9a7e-2f41-4d1c-9a35-7c3e8d2f6a10"  # not a new one: the workers of a run in parallel compare their tests


@pytest.mark.parametrize(
    "text",
    ["", "x", "../../etc/passwd", ONE.upper(), ONE.replace("-", ""), f"{{{ONE}}}", ONE + "/"],
)
def test_only_canonical_ids_become_folders(text: str) -> None:
    assert not is_job_id(text)
    assert is_job_id(new_id())


def test_unreadable_json_is_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none") is None
    (tmp_path / "folder").mkdir()
    assert read_json(tmp_path / "folder") is None
