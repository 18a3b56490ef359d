"""Everything ends in seconds, whatever is open: twenty live pages, streams through the door, a question that hangs."""

from pathlib import Path

import psutil
import pytest

from tests.operations.shutdown import Busy
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT_S = 5.0
BUSY_MACHINE = 2.0


def engines(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BERTH_JOB") and process.environ().get("HOME") == str(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_with_live_pages_and_streams_open(tmp_path: Path) -> None:
    busy = Busy(tmp_path)
    try:
        busy.start()
        busy.fill(pages=20)
        running = engines(tmp_path)
        assert running
        took = busy.stop()
        assert took <= LIMIT_S * BUSY_MACHINE, f"{took:.1f} s\n{busy.panel.said()}"
        assert "Stopped. " in busy.panel.said() and "engines go on" in busy.panel.said()
        assert all(process.is_running() for process in running), "engines outlive the panel"
    finally:
        busy.close()
    until(lambda: not engines(tmp_path), timeout=30, why="and end with `down`")
