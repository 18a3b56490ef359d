"""200 MB from a hub that breaks connections, ends answers early and once sends a wrong byte, while agent and download
are killed at ten points: the files end whole and compared, none is shown before, no byte that was there comes twice.
"""

from __future__ import annotations

import os
import random
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from panel.fleet.agent.download_part import HEAD, MAP, PART, piece_size
from tests.agent.conftest import Host, marked
from tests.agent.downloads import MIB, REPO, noise, order
from tests.fakes.hub import Fault, Hub
from tests.fakes.panel import FakePanel
from tests.waiting import until

pytestmark = pytest.mark.slow
LARGE, SMALL = 150 * MIB, 50 * MIB
KILLS = 10


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as made:
        made.send_buffer = 1 << 16  # what is on its way when a process is killed was sent, and is lost
        made.add(REPO, {"a.safetensors": noise(LARGE), "b.safetensors": noise(SMALL, 2), "config.json": b"{}"})
        yield made


class Parts:
    """What the maps of unfinished files claim."""

    def __init__(self, hub: Hub, cache: Path) -> None:
        self.files = {path: (file.etag, file.size) for path, file in hub.repos[REPO].files.items()}
        self.blobs = cache / "models--acme--tiny" / "blobs"

    def claimed(self) -> dict[str, list[tuple[int, int]]]:
        found = {}
        for path, (sum_, size) in self.files.items():
            if (self.blobs / sum_).exists():
                found[path] = [(0, size)]
                continue
            piece, map_ = piece_size(size), self.blobs / f"{sum_}{MAP}"
            count = -(-size // piece)
            raw = map_.read_bytes() if map_.exists() else b""
            done = struct.unpack_from(f"<{count}Q", raw, HEAD) if len(raw) == HEAD + 16 * count else ()
            found[path] = [(index * piece, index * piece + number) for index, number in enumerate(done) if number]
        return found

    def have(self) -> int:
        return sum(end - start for ranges in self.claimed().values() for start, end in ranges)


@dataclass
class Try:
    """What was there when a killed download was gone on with, and what was asked for from then on."""

    claimed: dict[str, list[tuple[int, int]]]
    first: int
    last: int | None = None

    def close(self, hub: Hub) -> None:
        """The try after it begins, or what it fetched is found to be wrong and deleted."""
        self.last = self.last if self.last is not None else len(hub.asked)

    @property
    def there(self) -> int:
        return sum(end - start for ranges in self.claimed.values() for start, end in ranges)

    def twice(self, hub: Hub) -> int:
        """Bytes that were sent though they were there; asked when nothing is on its way any more."""
        return sum(
            max(0, min(end, ask.start + ask.sent) - max(start, ask.start))
            for ask in hub.asked[self.first : self.last]
            for start, end in self.claimed.get(ask.path, [])
        )


def test_killed_at_ten_points(host: Host, fake_panel: FakePanel, hub: Hub) -> None:
    chance = random.Random(5)
    tries: list[Try] = []
    hub.chance = lambda ask: weather(chance)
    hub.fail(Fault("wrong", path="b.safetensors", where="cdn"))
    host.configure(fake_panel)
    host.start_agent()
    parts = Parts(hub, host.models)
    task = order(hub, host.models)
    job = fake_panel.order(task)
    points = sorted(chance.randrange(LARGE + SMALL) for _ in range(KILLS))
    for number, point in enumerate(points):
        until(lambda at=point, job=job: parts.have() >= at or ended(fake_panel, job), 60, why=f"for {point} bytes")
        if ended(fake_panel, job):  # the wrong byte was noticed: what is wrong was deleted
            assert failure(fake_panel, job) == "download.wrong_hash"
            tries[-1].close(hub)
            job = fake_panel.order(task)
            until(lambda job=job: marked(job), 20)
        if number % 3 != 2:
            for pid in marked(job):
                kill(pid)
        if number % 3 != 1:
            host.kill_agent()
        if number % 3 != 2:
            until(lambda job=job: not marked(job), 10)
            for one in tries[-1:]:
                one.close(hub)
            tries.append(Try(parts.claimed(), len(hub.asked)))
            assert_nothing_is_shown(host.models)
        if number % 3 != 1:
            host.start_agent()
        if number % 3 != 2:
            until(lambda job=job: ended(fake_panel, job), 20)
            assert failure(fake_panel, job) == "task_failed"
            job = fake_panel.order(task)
    hub.chance = lambda ask: None
    fake_panel.wait_state(job, "ended", timeout_s=60)
    tries[-1].close(hub)
    if failure(fake_panel, job):
        assert failure(fake_panel, job) == "download.wrong_hash"
        assert_nothing_is_shown(host.models)
        job = fake_panel.order(task)
        fake_panel.wait_state(job, "ended", timeout_s=60)
        fake_panel.wait(lambda: job in fake_panel.results)
    assert failure(fake_panel, job) == ""
    assert [one.twice(hub) for one in tries] == [0] * len(tries), "bytes that were there came again"
    assert len(tries) >= KILLS // 2 and sum(one.there for one in tries) > LARGE
    snapshot = host.models / "models--acme--tiny" / "snapshots" / hub.repos[REPO].commit
    for path, file in hub.repos[REPO].files.items():
        assert (snapshot / path).read_bytes() == file.bytes, path
    assert not [path for path in host.models.rglob("*") if path.name.endswith((PART, MAP))]
    # Each byte once, the file with the wrong byte twice, and what was on its way at each break.
    assert hub.sent <= LARGE + 2 * SMALL + (KILLS + 3) * 4 * MIB


def weather(chance: random.Random) -> Fault:
    kind = chance.choice(["slow", "slow", "drop", "short", "status"])
    return Fault(kind, after=chance.randrange(20 * MIB), rate=0 if kind == "status" else 12 * MIB, status=503)


def ended(panel: FakePanel, job: str) -> bool:
    return job in panel.results


def failure(panel: FakePanel, job: str) -> str:
    panel.wait(lambda: job in panel.results)
    refusal = panel.results[job].refusal
    return refusal.code if refusal is not None else ""


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def assert_nothing_is_shown(cache: Path) -> None:
    assert not list(cache.glob("models--*/snapshots/*/*")) and not list(cache.glob("models--*/refs/*"))
