"""The process tree of `manage.py up`: parts start together, start again when they die, stop in order."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from django.urls import get_resolver
from django.utils.translation import gettext as _

from panel import forked
from panel.children import Child, last_line
from panel.core.errors import PanelError
from panel.core.network import loopback

LOOK_S = 0.2
STEADY_S = 60.0  # after so long the count of failures begins anew
WORKER = ("celery.bin.worker", "celery.apps.worker", "celery.concurrency.thread", "kombu.transport.redis")
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Part(Child):
    """One of our own programs. It runs in the checkout, so that `python -m` finds the code."""

    stop_seconds = 4.5  # the web process gives open streams three of them

    def __init__(
        self,
        name: str,
        argv: list[str],
        *,
        data: Path,
        home: Path,
        quits: bool = False,
        run: Callable[[], int] | None = None,
        title: str = "",
    ) -> None:
        """`run` does what `argv` would, in a copy of this process that `ps` shows as `title`."""
        self.name, self.argv, self.home, self.run, self.title = name, argv, home, run, title
        if quits:  # Celery: TERM waits for running tasks, QUIT does not
            self.stop_signals = ("TERM", "QUIT", "KILL")
            self.stop_seconds = 1.5  # what was under way is taken up again by the next worker
        super().__init__(data)

    def start(self) -> None:
        if self.run is None or not forked.possible():
            self.spawn(self.argv, env={**os.environ, "PYTHONUNBUFFERED": "1"}, cwd=self.home)
            return
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        self.bound_log()
        with self.log.open("ab") as log:
            title = self.title.split()
            self.child = forked.fork(self.run, title=title, log=log, cwd=self.home, death_signal=self.death_signal)
        self.process = psutil.Process(self.child.pid)

    def answers(self) -> bool:
        return self.alive()


class Web(Part):
    """The web process, ready when its port takes a connection."""

    def __init__(self, name: str, argv: list[str], *, address: tuple[str, int], **more: Any) -> None:
        super().__init__(name, argv, **more)
        self.address = address

    def answers(self) -> bool:
        try:
            with socket.create_connection(self.address, timeout=1):
                return True
        except OSError:
            return False


class Tree:
    """Starts parts, keeps them alive, and stops them: the programs first, the servers they use last."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.children: list[Child] = []
        self._failures: dict[Child, int] = {}
        self._begun: dict[Child, float] = {}
        self._due: dict[Child, float] = {}
        self.stopping = False

    def add(self, children: Iterable[Child], *, started: bool = False) -> None:
        """Take care of these from now on; `started` says that they run already."""
        for child in children:
            if not started:
                child.start()
            self.children.append(child)
            self._begun[child] = time.monotonic()

    def watch(self) -> None:
        """Look after the parts for ever; a signal ends it with KeyboardInterrupt (see `until_told`)."""
        while True:
            for child in self.children:
                self._tend(child, time.monotonic())
            time.sleep(LOOK_S)

    def _tend(self, child: Child, now: float) -> None:
        if child in self._due:
            if now >= self._due[child]:
                del self._due[child]
                self._start_again(child, now)
        elif child.alive():
            child.bound_log()
            if now - self._begun[child] > STEADY_S:
                self._failures.pop(child, None)
        else:
            failures = self._failures[child] = self._failures.get(child, 0) + 1
            wait = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
            self._due[child] = now + wait
            values = {"name": child.name, "how": ending(child.code), "line": last_line(child.log), "wait": f"{wait:g}"}
            self.say(_("%(name)s ended (%(how)s): %(line)s") % values)
            self.say(_("  It starts again in %(wait)s s. Its log: %(log)s") % {**values, "log": child.log})

    def _start_again(self, child: Child, now: float) -> None:
        self._begun[child] = now
        try:
            child.start()
        except (PanelError, OSError) as exc:  # it counts as one more end, and is tried again later
            self.say(exc.text if isinstance(exc, PanelError) else str(exc))

    def stop(self) -> None:
        """Everything at once where it may be, the embedded servers after the programs that use them."""
        self.stopping = True
        parts = [child for child in self.children if isinstance(child, Part)]
        servers = [child for child in self.children if not isinstance(child, Part)]
        for server in servers:
            threading.Thread(target=server.settle, name=f"settle-{server.name}", daemon=True).start()
        for group in (parts, servers):
            self._end(group)

    def _end(self, group: list[Child]) -> None:
        """All of them side by side, each asked politely first and then less so; returns when they are gone."""
        asked: dict[Child, tuple[int, float]] = dict.fromkeys(group, (0, 0.0))
        while living := [child for child in group if child.alive()]:
            now = time.monotonic()
            for child in living:
                times, since = asked[child]
                if not times or now - since > child.stop_seconds:  # which an impatient person may shorten meanwhile
                    child.signal(child.stop_signals[min(times, len(child.stop_signals) - 1)])
                    asked[child] = times + 1, now
            time.sleep(0.02)

    def hurry(self) -> None:
        for child in self.children:
            child.stop_seconds = 0.2

    def until_told(self) -> None:
        """TERM, Ctrl-C and a closed terminal raise KeyboardInterrupt once; asked again while stopping, we hurry."""

        def told(_number: int, _frame: FrameType | None) -> None:
            if self.stopping:
                self.hurry()
                return
            self.stopping = True
            raise KeyboardInterrupt

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, told)


def ending(code: int | None) -> str:
    """How a process ended, for people."""
    if code is None:
        return _("exit code unknown")
    if code < 0:
        return _("signal %(name)s") % {"name": signal.Signals(-code).name}
    return _("exit code %(code)s") % {"code": code}


def programs(settings: Any, data: Path) -> list[Part]:
    """Web, the two workers and the local agent, as commands; all but the agent may be copies of this process."""
    bind, python = settings.BERTH_BIND_HOST, [sys.executable, "-m"]
    where = {"data": data, "home": settings.BASE_DIR}

    def worker(queue: str, threads: int) -> Part:
        words = ["--quiet", "worker", "-P", "threads", "-c", str(threads), "-Q", queue, "-n", f"{queue}@%h"]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        argv, title = [*python, "celery", "-A", "panel.celery", *words], f"celery worker -Q {queue}"
        return Part(f"worker-{queue}", argv, quits=True, run=partial(_work, words), title=title, **where)

    # A question to a slow engine holds a thread for minutes: it has a process of its own, so that no queue can starve.
    address = (loopback(bind), settings.BERTH_PORT)
    parts = [
        Web("web", [*python, "panel.web"], address=address, run=_serve, title="python -m panel.web", **where),
        worker("loop", 4),
        worker("probe", 8),
    ]
    if settings.BERTH_LOCAL_AGENT:
        parts.append(Part("agent", [*python, "panel.fleet.agent", "--dir", str(data / "agent")], **where))
    return parts


def _serve() -> int:
    from panel import web

    return web.main()


def _work(words: list[str]) -> int:
    from panel.celery import app

    app.worker_main(words)  # leaves by SystemExit
    return 0


def load_programs() -> None:
    """Load what web and workers are made of into this process, so that their copies share it."""
    with forked.only_parts("django.test"):  # the API's framework wants one signal of it; the rest is 4 MiB
        import_module("ninja")
    for name in ("panel.web", "panel.asgi", "panel.urls", "deployments.ticker", "deployments.reconcile", *WORKER):
        import_module(name)
    get_resolver().url_patterns  # noqa: B018  (loads the views)
