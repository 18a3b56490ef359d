"""Logs reach the panel byte for byte, whatever breaks on the way."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from panel.fleet import wire
from panel.fleet.agent.client import Away, Client
from panel.fleet.agent.config import Config
from panel.fleet.agent.logs import Shipper
from tests.agent.conftest import Host, Table
from tests.agent.test_log_bound import pattern
from tests.fakes.panel import TOKEN, FakePanel
from tests.waiting import until

SIZE = 6_000_000
WRITE = """
first = 0
while first < %d:
    part = b"".join(b"%%015d\\n" %% (i * 16) for i in range(first // 16, first // 16 + 1000))
    os.write(1, part); first += len(part)
"""


@pytest.fixture
def shipper(host: Host, table: Table, fake_panel: FakePanel) -> Iterator[Shipper]:
    client = Client(Config(folder=host.dir, panel=fake_panel.url, token=TOKEN))
    yield Shipper(table.jobs, client, threading.Event(), lambda: None)
    client.close()


def ship(shipper: Shipper, table: Table, done: Callable[[], bool]) -> None:
    """Rounds until it is done; pauses after faults are skipped, they need no real time."""

    def one() -> bool:
        table.jobs.tick()
        for position in shipper.positions.values():
            position.not_before = 0.0
        try:
            shipper.round()
        except Away:
            return False
        return done()

    until(one, 60)


def run(host: Host, table: Table, code: str, **fields: int) -> str:
    job_id = str(uuid.uuid4())
    table.order(job_id, host.task(host.engine(code), **fields))
    return job_id


@pytest.mark.parametrize("fault", [500, 503, 422, "drop"])
@pytest.mark.parametrize("reply_lost", [False, True], ids=["request", "reply"])
def test_byte_exact_over_faults(
    host: Host, table: Table, shipper: Shipper, fake_panel: FakePanel, fault: int | str, reply_lost: bool
) -> None:
    count = itertools.count()

    def faults(path: str) -> int | str | None:
        if "/log" not in path or path.startswith("reply ") != reply_lost:
            return None
        return None if next(count) % 3 == 0 else ("drop" if reply_lost else fault)

    fake_panel.fault = faults
    job_id = run(host, table, WRITE % SIZE)
    ship(shipper, table, lambda: len(fake_panel.log(job_id)) >= SIZE)
    stored = fake_panel.logs[job_id]
    assert bytes(stored.data) == pattern(0, SIZE) and not stored.gaps


def test_a_new_shipper_goes_on_where_the_panel_is(
    host: Host, table: Table, shipper: Shipper, fake_panel: FakePanel
) -> None:
    job_id = run(host, table, WRITE % SIZE)
    ship(shipper, table, lambda: len(fake_panel.log(job_id)) > SIZE // 2)
    table.until(job_id, "ended")
    before = fake_panel.logs[job_id].uploads
    again = Shipper(table.jobs, shipper.client, threading.Event(), lambda: None)
    ship(again, table, lambda: len(fake_panel.log(job_id)) == SIZE)
    assert bytes(fake_panel.logs[job_id].data) == pattern(0, SIZE)
    assert fake_panel.logs[job_id].uploads - before <= SIZE // wire.MAX_LOG_CHUNK + 2


def test_a_hole_is_announced(host: Host, table: Table, shipper: Shipper, fake_panel: FakePanel) -> None:
    """The panel was away while the disk bound removed the middle."""
    size = 20_000_000
    job_id = run(host, table, WRITE % size, log_head_mib=1, log_tail_mib=2)
    ended = table.until(job_id, "ended")
    assert ended.log_hole is not None and ended.log_size == size
    ship(shipper, table, lambda: len(fake_panel.log(job_id)) == size)
    stored = fake_panel.logs[job_id]
    start, end = ended.log_hole
    assert stored.gaps == [(start, end)]
    assert stored.data[:start] == pattern(0, start) and stored.data[end:] == pattern(end, size)


def test_a_panel_that_has_less_gets_it_again(host: Host, table: Table, shipper: Shipper, fake_panel: FakePanel) -> None:
    """Its database was restored from a backup: the log is shipped from where it is now."""
    job_id = run(host, table, "print('one', flush=True); time.sleep(0.1); print('two', flush=True); time.sleep(600)")
    ship(shipper, table, lambda: fake_panel.log(job_id) == b"one\n")
    fake_panel.logs[job_id].data.clear()
    ship(shipper, table, lambda: fake_panel.log(job_id) == b"one\ntwo\n")


def test_a_job_the_panel_does_not_know_holds_up_no_other(
    host: Host, table: Table, shipper: Shipper, fake_panel: FakePanel
) -> None:
    unknown = run(host, table, "print('x', flush=True); time.sleep(600)")
    known = run(host, table, "print('x', flush=True); time.sleep(600)")
    fake_panel.fault = lambda path: 404 if unknown in path else None
    ship(shipper, table, lambda: fake_panel.log(known) == b"x\n")
    assert unknown not in fake_panel.logs


def test_floods_take_turns(host: Host, table: Table, shipper: Shipper, fake_panel: FakePanel) -> None:
    flood = run(host, table, WRITE % (30 * wire.MAX_LOG_CHUNK))
    table.until(flood, "ended")
    quiet = run(host, table, "print('x', flush=True); time.sleep(600)")
    until(lambda: table.job(quiet).log.size())
    ship(shipper, table, lambda: bool(fake_panel.log(quiet)))
    assert len(fake_panel.logs[flood].data) <= 3 * wire.MAX_LOG_CHUNK
