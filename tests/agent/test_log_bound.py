"""A log's disk use is bounded while its offsets stay true: by holes, or by moving where holes cannot be."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import uuid
from pathlib import Path

import pytest

from panel.fleet.agent import shim
from panel.fleet.agent.keeper import Keeper
from panel.fleet.agent.logfile import LogFile
from tests.agent.conftest import Host, Table
from tests.waiting import until

KIB = 1 << 10
MIB = 1 << 20


class NoHoles:
    """A file system that cannot punch holes."""

    def fallocate(self, *_args: object) -> int:
        ctypes.set_errno(95)
        return -1


def pattern(start: int, end: int) -> bytes:
    """Text whose every 16 bytes say where they are."""
    first = start // 16
    text = b"".join(b"%015d\n" % (i * 16) for i in range(first, -(-end // 16)))
    return text[start - first * 16 : end - first * 16]


class Log:
    """One log folder with a bound, written by the test like an engine does."""

    def __init__(self, folder: Path, head: int, tail: int, holes: bool) -> None:
        self.folder, self.head, self.tail = folder, head, tail
        self.handle = os.open(folder / "log", os.O_RDWR | os.O_APPEND | os.O_CREAT)
        libc = ctypes.CDLL(None, use_errno=True) if holes else NoHoles()
        self.bound = shim.LogBound(self.handle, head, tail, libc, f"{folder}/")  # type: ignore[arg-type]
        self.written = 0
        self.file = LogFile(folder)

    def write(self, count: int) -> None:
        os.write(self.handle, pattern(self.written, self.written + count))
        self.written += count

    def disk(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.folder.iterdir())

    def read_all(self) -> tuple[list[tuple[int, bytes]], int]:
        """(pieces by offset, skipped bytes) from the start to the end."""
        at, pieces, skipped = 0, [], 0
        while True:
            piece = self.file.read(at, 64 * KIB)
            assert piece is not None
            skipped += piece.skipped
            if not piece.data:
                return pieces, skipped
            pieces.append((piece.start, piece.data))
            at = piece.end


@pytest.fixture(params=[True, False], ids=["holes", "moving"])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return Log(tmp_path, 64 * KIB, 512 * KIB, request.param)


def test_a_flood_is_bounded_and_offsets_stay_true(bounded: Log) -> None:
    for _ in range(300):
        bounded.write(40_000)
        bounded.bound.check()
        assert bounded.disk() < 1.5 * MIB
    size, hole, _when = bounded.file.facts()
    assert size == bounded.written == 12_000_000 and hole is not None
    assert hole[0] == 64 * KIB and hole[1] <= size - bounded.tail // 2
    pieces, skipped = bounded.read_all()
    assert skipped == hole[1] - hole[0]
    assert all(data == pattern(start, start + len(data)) for start, data in pieces)
    assert sum(len(data) for _, data in pieces) + skipped == size


def test_small_logs_are_left_alone(bounded: Log) -> None:
    bounded.write(64 * KIB + 200 * KIB)
    bounded.bound.check()
    assert bounded.file.facts()[:2] == (bounded.written, None)
    assert not (bounded.folder / "log.json").exists()


def test_reading_while_it_is_bounded_never_yields_zeros_or_wrong_text(bounded: Log) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set() and bounded.written < 20_000_000:
            bounded.write(40_000)
            bounded.bound.check()

    writer = threading.Thread(target=flood)
    writer.start()
    at, seen, skipped = 0, 0, 0
    reader = LogFile(bounded.folder)
    while writer.is_alive() or at < bounded.written:
        piece = reader.read(at, 256 * KIB)
        if piece is None:
            continue
        assert piece.data == pattern(piece.start, piece.end)
        at, seen, skipped = piece.end, seen + len(piece.data), skipped + piece.skipped
    stop.set()
    writer.join()
    assert at == bounded.written == seen + skipped


def test_another_process_goes_on_bounding_where_the_shim_stopped(bounded: Log) -> None:
    for _ in range(100):
        bounded.write(40_000)
        bounded.bound.check()
    keeper = Keeper.open(bounded.folder, bounded.head, bounded.tail, bounded.file.book())
    if isinstance(bounded.bound.libc, NoHoles):
        keeper.bound.libc = bounded.bound.libc
    for _ in range(100):
        bounded.write(40_000)
        keeper._next = 0.0
        keeper.check()
    assert bounded.disk() < 1.5 * MIB
    pieces, skipped = bounded.read_all()
    assert all(data == pattern(start, start + len(data)) for start, data in pieces)
    assert sum(len(data) for _, data in pieces) + skipped == bounded.written
    keeper.close()


@pytest.mark.parametrize("when", ["copied", "cut"])
@pytest.mark.parametrize("rounds", [0, 100])
def test_a_shim_killed_while_it_moved_the_log(tmp_path: Path, when: str, rounds: int) -> None:
    bounded = Log(tmp_path, 64 * KIB, 512 * KIB, False)
    for _ in range(rounds):
        bounded.write(40_000)
        bounded.bound.check()
    bounded.write(400 * KIB if rounds else 700 * KIB)

    class Killed(BaseException):
        pass

    def killed(*_args: object) -> None:
        raise Killed

    truncate, bounded.bound.finish_move = os.ftruncate, killed  # type: ignore[method-assign,assignment]
    try:
        if when == "copied":
            shim.os.ftruncate = lambda h, n: killed() if h == bounded.handle else truncate(h, n)  # type: ignore[assignment]
        with pytest.raises(Killed):
            bounded.bound.check()
    finally:
        shim.os.ftruncate = truncate
    assert LogFile(tmp_path).read(0, 10) is None
    keeper = Keeper.open(tmp_path, bounded.head, bounded.tail, LogFile(tmp_path).book())
    bounded.write(1000)
    pieces, skipped = bounded.read_all()
    assert all(data == pattern(start, start + len(data)) for start, data in pieces)
    assert sum(len(data) for _, data in pieces) + skipped == bounded.written
    keeper.close()


def test_a_full_disk_ends_no_shim(bounded: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(50):
        bounded.write(40_000)
    monkeypatch.setattr(shim, "replace", full)
    bounded.bound.check()
    monkeypatch.undo()
    bounded.bound.check()
    assert bounded.file.facts()[0] == bounded.written and bounded.file.book().moving is False
    pieces, _ = bounded.read_all()
    assert all(data == pattern(start, start + len(data)) for start, data in pieces)


FLOOD = """
line = b"x" * 99 + b"\\n"
for _ in range(1500):
    os.write(1, line * 1000)
open(sys.argv[1] + "/done", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("kill_shim", [False, True])
def test_the_flood_of_a_real_job_is_bounded(host: Host, table: Table, kill_shim: bool) -> None:
    job_id = str(uuid.uuid4())
    table.order(job_id, host.task(host.engine(FLOOD), log_head_mib=1, log_tail_mib=4))
    table.until(job_id, "running")
    shim_ident = table.job(job_id).shim
    if kill_shim and shim_ident is not None:
        os.kill(shim_ident.pid, signal.SIGKILL)
    until(lambda: table.jobs.tick() and (host.model / "done").exists(), 60)
    log = host.job_folder(job_id) / "log"
    until(lambda: table.jobs.tick() and log.stat().st_blocks * 512 < 8 * MIB, 60)
    status = table.status(job_id)
    assert status is not None and status.log_size == log.stat().st_size == 150_000_000
    assert status.log_hole is not None and status.log_hole[0] == MIB
    assert 4 * MIB <= status.log_size - status.log_hole[1] <= 6 * MIB
    table.stop(job_id)
    assert table.until(job_id, "ended").signal == (None if kill_shim else signal.SIGTERM)
