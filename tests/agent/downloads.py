"""What tests of downloads share: a hub, a store, an order."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from panel.fleet.agent.download import Download
from panel.fleet.agent.download_http import Patience, Session
from panel.fleet.agent.download_order import TOKENS
from panel.fleet.agent.download_store import Store
from panel.fleet.agent.download_sums import Checked
from panel.fleet.wire import DownloadFile, DownloadTask
from tests.fakes.hub import Hub

QUICK = Patience(connect_s=2.0, read_s=1.0, first_s=2.0, stall_s=3.0, most_pause_s=0.2)
MIB = 1 << 20
REPO = "acme/tiny"


@cache
def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def order(hub: Hub, folder: Path, repo: str = REPO, *paths: str, **more: Any) -> DownloadTask:
    files = [DownloadFile(**file) for file in hub.sums(repo, *paths)]
    fields = {"endpoint": hub.url, "repo": repo, "revision": "main", "files": files, "folder": str(folder), **more}
    return DownloadTask(**fields)


class Told:
    """What a download said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notes: list[tuple[str, int, int]] = []
        self.troubles: set[str] = set()

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, phase: str, done: int = 0, total: int = 0, note: str = "", **more: Any) -> None:
        self.notes.append((phase, done, total))
        self.troubles |= {more["trouble"]} if more.get("trouble") else set()

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(phase for phase, _done, _total in self.notes))


def loader(task: DownloadTask, memory: Path, *, token: str = "", patience: Patience = QUICK, **more: Any) -> Download:
    session = Session(task.endpoint, token, task.proxy, patience, task.connections)
    assert not token or TOKENS[task.source]
    store = Store(task, [Path(task.folder)])
    return Download(task, store, session, Checked(memory / "checked.json"), Told(), patience, spare=0, **more)
