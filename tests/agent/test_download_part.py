"""The map of an unfinished file: what it claims is there, whatever died when."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from panel.fleet.agent import download_part
from panel.fleet.agent.download_part import HEAD, MAP, PART, Part, discard, finish
from tests.agent.downloads import noise

SIZE, PIECE = 10_500, 1000
SUM = "a" * 64


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_part, "PIECE", PIECE)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / SUM


def opened(base: Path, sum_: str = SUM, size: int = SIZE) -> Part:
    return Part.open(base, sum_, size)


def test_bytes_come_in_any_order_and_are_there_again(base: Path) -> None:
    data, part = noise(SIZE), opened(base)
    assert (len(part.done), part.length(10), part.have) == (11, 500, 0)
    part.write(10_000, data[10_000:])
    part.write(3000, data[3000:5700])  # over the border of a piece
    part.close()
    again = opened(base)
    assert again.done == [0, 0, 0, 1000, 1000, 700, 0, 0, 0, 0, 500] and again.have == 3200
    for index, done in enumerate(again.done):
        at = index * PIECE + done
        again.write(at, data[at : index * PIECE + again.length(index)])
    assert again.complete
    again.close()
    finish(base)
    assert base.read_bytes() == data and sorted(base.parent.iterdir()) == [base]


def test_bytes_that_leave_a_gap_are_no_bytes_of_it(base: Path) -> None:
    part = opened(base)
    with pytest.raises(ValueError, match="not the next"):
        part.write(1, b"x")
    assert part.have == 0


@pytest.mark.parametrize("change", ["sum", "size", "torn", "short", "absent", "nonsense"])
def test_a_map_that_is_not_of_this_file_counts_nothing(base: Path, change: str) -> None:
    part = opened(base)
    part.write(0, noise(2500))
    part.close()
    map_, file = base.with_name(SUM + MAP), base.with_name(SUM + PART)
    if change == "torn":
        os.truncate(map_, HEAD + 20)
    elif change == "short":
        os.truncate(file, 2000)
    elif change == "absent":
        file.unlink()
    elif change == "nonsense":
        map_.write_bytes(b"\xff" * map_.stat().st_size)
    again = opened(base, "b" * 64 if change == "sum" else SUM, SIZE + 1 if change == "size" else SIZE)
    if change == "sum":
        again = Part.open(base, "b" * 64, SIZE)
    assert again.have == 0 and os.fstat(again.file).st_size == again.size


def test_after_a_restart_of_the_machine_only_what_was_synced_counts(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = opened(base)
    part.write(0, noise(1500))
    part.sync()
    part.write(1500, noise(400))
    part.close()
    again = opened(base)
    assert again.have == 1900
    again.close()
    monkeypatch.setattr(download_part, "boot_id", lambda: "another boot")
    later = opened(base)
    assert later.done[:3] == [1000, 500, 0]
    later.write(1500, noise(100))
    later.close()
    assert opened(base).have == 1600  # of the new boot


def test_a_number_that_is_too_large_is_cut(base: Path) -> None:
    part = opened(base)
    part.write(0, noise(1000))
    os.pwrite(part.map, (1 << 60).to_bytes(8, "little"), HEAD + 8)
    part.close()
    assert opened(base).done[:3] == [1000, 1000, 0]


def test_a_link_is_not_followed(base: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    base.with_name(SUM + PART).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"):
        opened(base)
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_large_files_have_larger_pieces() -> None:
    size = 1 << 50
    assert -(-size // download_part.piece_size(size)) <= download_part.MOST_PIECES


def test_killed_at_any_point_nothing_is_claimed_that_is_not_there(base: Path) -> None:
    """A process writes and is killed, again and again; each time what the map claims is compared."""
    data, rounds = noise(SIZE), 0
    while rounds < 40:
        pid = os.fork()
        if pid == 0:
            part = opened(base)
            for index in random.sample(range(len(part.done)), len(part.done)):
                while part.done[index] < part.length(index):
                    at = index * PIECE + part.done[index]
                    part.write(at, data[at : at + min(7, part.length(index) - part.done[index])])
            os._exit(0)
        for _ in range(random.randint(1, 3000)):
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rounds += 1
        part = opened(base)
        for index, done in enumerate(part.done):
            start = index * PIECE
            assert os.pread(part.file, done, start) == data[start : start + done]
        complete = part.complete
        part.close()
        if complete:
            break
    discard(base)
    assert list(base.parent.iterdir()) == []
