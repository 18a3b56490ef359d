"""A flood in one engine's log, through everything: shim, agent, panel, ten readers of whom five stall, a browser.

The engine times its own write() calls, beside a run of the same flood into a file that nobody reads. Afterwards the
panel's copy of the log is compared byte by byte with what the engine wrote. Run: `python -m benchmarks.flood`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import Page, sync_playwright

from tests.browser.chromium import CHROMIUM, FLAGS

PLAN = {"lines_per_s": 20_000, "seconds": 30, "long_lines": 30, "unbroken_mib": 100, "binary_mib": 16}
SHORT = {"lines_per_s": 20_000, "seconds": 4, "long_lines": 3, "unbroken_mib": 70, "binary_mib": 2}
LIMITS = {"write": 5.0, "agent": 120, "web": 250, "shim": 16, "task": 50.0}  # ms at p99, MiB, MiB, MiB, ms
READERS = STALLED = 5
LEAP = 1 << 20  # as static/panel/live.js
FAKES = Path(__file__).parents[1] / "tests" / "fakes"
WATCH = """
window.flood = { tasks: [], gap: 0, last: performance.now() };
new PerformanceObserver(list => list.getEntries().forEach(e => flood.tasks.push(e.duration)))
  .observe({ type: 'longtask', buffered: true });
const beat = () => {
  const now = performance.now();
  flood.gap = Math.max(flood.gap, now - flood.last); flood.last = now;
  requestAnimationFrame(beat);
};
requestAnimationFrame(beat);
"""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# --- memory -----------------------------------------------------------------------------------------------------------
class Sampler(threading.Thread):
    """The largest PSS of each kind of process, MiB, looked at twice a second."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self.pids = pids
        self.first: dict[str, float] = {}
        self.most: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        found = {name: psutil.Process(pid) for name, pid in self.pids.items()}
        began = {name: sum(process.cpu_times()[:2]) for name, process in found.items()}
        while not self.stop.wait(0.5):
            for name, process in found.items():
                size = process.memory_full_info().pss / 2**20
                self.first.setdefault(name, size)
                self.most[name] = max(self.most.get(name, 0.0), size)
                self.cpu[name] = sum(process.cpu_times()[:2]) - began[name]


# --- readers ----------------------------------------------------------------------------------------------------------
@dataclass
class Reader:
    """Someone with the live stream open. A stalled one never reads; the others fetch the log as the page does."""

    port: int
    cookie: str
    pk: int
    log: str
    stalls: bool
    got: int = 0
    leapt: int = 0
    skipped: int = 0
    failed: str = ""
    at: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.line = socket.socket()
        if self.stalls:
            self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.line.connect(("127.0.0.1", self.port))
        head = f"Host: 127.0.0.1:{self.port}\r\nCookie: {self.cookie}\r\nAccept: text/event-stream\r\n"
        self.line.sendall(f"GET /deployments/{self.pk}/live HTTP/1.1\r\n{head}\r\n".encode())
        if not self.stalls:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers={"Cookie": self.cookie}) as client:
                while not self.ended.is_set() and (data := self.line.recv(1 << 16)):
                    self.skipped += data.count(b"event: skipped")
                    while self._part(client):
                        pass
        except OSError as exc:
            self.failed = "" if self.ended.is_set() else repr(exc)
        except httpx.HTTPError as exc:
            self.failed = repr(exc)

    def _part(self, client: httpx.Client) -> bool:
        answer = client.get(self.log, params={"offset": self.at}, timeout=30)
        answer.raise_for_status()
        size, start = int(answer.headers["X-Log-Size"]), int(answer.headers["X-Log-Start"])
        if size - start > LEAP:
            self.leapt += size - LEAP // 4 - self.at
            self.at = size - LEAP // 4
            return True
        self.leapt += start - self.at
        self.at, self.got = start + len(answer.content), self.got + len(answer.content)
        return bool(answer.content) and self.at < size

    def end(self) -> None:
        self.ended.set()
        self.line.close()


# --- the stored log ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Stored:
    """How the panel's copy compares: bytes that are equal, bytes in told gaps, where it first differs (-1: never)."""

    size: int
    equal: int
    gaps: int
    differs_at: int

    @property
    def right(self) -> bool:
        return self.differs_at < 0


def compare(job_id: Any, plan: dict[str, Any]) -> Stored:
    """The stored log against the plan: every stored byte is the one that was written there."""
    sys.path.insert(0, str(FAKES))
    import engine_flood  # type: ignore[import-not-found]

    from panel.fleet import logstore

    head = logstore.read(job_id, 0).data
    offset = head.index(engine_flood.BEGIN)
    at, equal, gaps = offset, 0, 0
    wanted = _Wanted(engine_flood.chunks(plan), offset)
    for part in logstore.read_all(job_id, offset):
        gaps += part.gap
        data = wanted.take(part.start, len(part.data))
        if data != part.data[: len(data)]:
            return Stored(part.size, equal, gaps, part.start)
        equal, at = equal + len(data), part.end
    if not wanted.over:
        return Stored(at, equal, gaps, at)
    return Stored(at, equal, gaps, -1)


class _Wanted:
    """What was written, by offset, made again from the plan in one pass."""

    def __init__(self, chunks: Iterator[tuple[str, bytes]], offset: int) -> None:
        self._chunks, self._at, self._rest, self.over = chunks, offset, b"", False

    def take(self, start: int, count: int) -> bytes:
        """At most `count` bytes from `start`; fewer at the end."""
        found = bytearray()
        while len(found) < count:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    self.over = True
                    break
                self._rest = chunk[1]
            skip = min(len(self._rest), max(0, start - self._at))
            self._at, self._rest = self._at + skip, self._rest[skip:]
            piece = self._rest[: count - len(found)] if self._at >= start else b""
            found += piece
            start, self._at, self._rest = start + len(piece), self._at + len(piece), self._rest[len(piece) :]
        if not self._rest:
            chunk = next(self._chunks, None)
            self.over, self._rest = chunk is None, chunk[1] if chunk else b""
        return bytes(found)


# --- the run ----------------------------------------------------------------------------------------------------------
@dataclass
class Figures:
    """Of one flood: write() by phase in ms with readers and alone, memory, the copy, the page."""

    write: dict[str, dict[str, float]]
    alone: dict[str, dict[str, float]]
    memory: dict[str, tuple[float, float]]  # before, at most
    cpu: dict[str, float]
    stored: Stored
    caught_up_s: float
    readers: list[Reader]
    page: dict[str, Any]

    def lines(self) -> list[str]:
        out = []
        for phase, own in self.write.items():
            if phase != "all":
                beside = self.alone.get(phase, {})
                both = ", ".join(f"{name} {own[name]:.3f} ({beside.get(name, 0):.3f})" for name in own)
                out.append(f"  write() of {phase}, ms, in brackets with nobody reading: {both}")
        seconds = self.write["all"]["seconds"]
        out.append(f"The flood took {seconds:.1f} s; the panel had all of it {self.caught_up_s:.1f} s later")
        for name, (first, most) in self.memory.items():
            share = self.cpu[name] / (seconds + self.caught_up_s)
            out.append(f"  PSS {name}: {first:.0f} → at most {most:.0f} MiB (limit {LIMITS[name]}), {share:.2f} cores")
        stored = self.stored
        verdict = "right" if stored.right else f"WRONG at {stored.differs_at}"
        out.append(
            f"Stored log: {verdict}; {stored.size / 2**20:.1f} MiB written, {stored.equal / 2**20:.1f} MiB kept and "
            f"compared, {stored.gaps / 2**20:.1f} MiB in gaps that it tells"
        )
        awake = [reader for reader in self.readers if not reader.stalls]
        out.append(
            "Readers: " + "; ".join(f"{r.got / 2**20:.1f} MiB, skipped {r.leapt / 2**20:.1f}" for r in awake)
            + f"; {len(self.readers) - len(awake)} stalled; failures {[r.failed for r in awake if r.failed]}"
        )  # fmt: skip
        if self.page:
            page = self.page
            out.append(
                f"Page: {page['long']} tasks over {LIMITS['task']:g} ms, the longest {page['worst']:.0f} ms; "
                f"longest pause between frames {page['gap']:.0f} ms; the last line was there {page['last']:.1f} s "
                f"after the panel had it; the page says: {page['note']!r}"
            )
        else:
            out.append("Page: not looked at, there is no Chromium here")
        return out

    @property
    def good(self) -> bool:
        flat = all(
            own["p99"] <= LIMITS["write"] + self.alone[phase]["p99"]
            for phase, own in self.write.items()
            if "p99" in own
        )
        bounded = all(most <= LIMITS[name] for name, (_first, most) in self.memory.items())
        page = not self.page or (self.page["long"] == 0 and bool(self.page["note"]))
        return flat and bounded and self.stored.right and page and not any(r.failed for r in self.readers)


def alone(plan: dict[str, Any], folder: Path) -> dict[str, dict[str, float]]:
    """The same flood into a file of the same disk, with nobody to read it."""
    path = folder / "alone.json"
    path.write_text(json.dumps(plan | {"report": str(folder / "alone.report")}), encoding="utf-8")
    with (folder / "alone.log").open("ab", 0) as out:
        subprocess.run([sys.executable, str(FAKES / "engine_flood.py"), str(path)], stdout=out, check=True)
    (folder / "alone.log").unlink()
    return json.loads((folder / "alone.report").read_text())


@contextmanager
def following(person: Any, port: int, pk: int) -> Iterator[Page | None]:
    """A browser on the deployment's page, its log open and followed."""
    if not CHROMIUM:
        yield None
        return
    url = f"http://127.0.0.1:{port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(base_url=url)
        context.add_cookies([{"name": c.name, "value": c.value or "", "url": url} for c in person.client.cookies.jar])
        page = context.new_page()
        page.goto(f"/deployments/{pk}/")
        page.locator("details", has=page.locator(".log")).locator("summary").click()
        page.locator(".log").wait_for()
        page.wait_for_timeout(1000)
        page.evaluate(WATCH)
        yield page
        browser.close()


def what_it_shows(page: Page | None) -> dict[str, Any]:
    if page is None:
        return {}
    began = time.monotonic()
    _until(lambda: page.evaluate("document.querySelector('.log').textContent.includes('flood is over')"), page, 30)
    last = time.monotonic() - began
    page.wait_for_timeout(500)
    seen = page.evaluate("({ tasks: flood.tasks, gap: flood.gap })")
    note = page.locator("[id$=-skipped]")
    return {
        "long": sum(1 for ms in seen["tasks"] if ms > LIMITS["task"]),
        "worst": max(seen["tasks"], default=0.0),
        "gap": seen["gap"],
        "last": last,
        "note": note.inner_text() if note.is_visible() else "",
    }


def measure(plan: dict[str, Any]) -> Figures:
    """Start a panel and an engine, flood, compare, take everything down."""
    from benchmarks import measure as base
    from benchmarks.__main__ import django_on
    from tests.fakes.make_engine import make_fake_model
    from tests.panel.running import Panel
    from tests.waiting import free_port

    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # Playwright's loop is in this thread while rows are read
    with tempfile.TemporaryDirectory(prefix="berth-flood-") as name:
        folder = Path(name)
        panel = Panel(folder / "data", free_port())
        panel.env["BERTH_LIVE_PROBE_S"] = "0"  # the question of every minute would leave a line amid the flood
        engines = base.Engines(panel, folder)
        make_fake_model(engines.models / "good", phase_s=0.01, flood_plan=str(folder / "plan.json"))
        try:
            base.first_page(panel)
            panel.end()
            engines.allow()
            panel.up()
            django_on(panel.data)
            row = engines.deploy()
            base.wait_for(row, "ready")
            beside = alone(plan, folder)
            pids = {"web": panel.part("panel.web").pid, "agent": panel.part("panel.fleet.agent --dir").pid}
            return flooded(panel, pids, row, base.Person(panel), plan, beside)
        finally:
            panel.manage("down", timeout=180)


def flooded(panel: Any, pids: dict[str, int], row: Any, person: Any, plan: dict[str, Any], beside: Any) -> Figures:
    """Let the engine of `row` flood by `plan`, and look on. `panel` has a port and a data folder."""
    from panel.fleet.models import JobLog

    job, folder = row.run.job, panel.data.parent
    report = folder / "report.json"
    shim = json.loads((panel.data / "agent" / "jobs" / str(job.pk) / "run.json").read_text())["shim"][0]
    cookie = "; ".join(f"{c.name}={c.value}" for c in person.client.cookies.jar)
    log = f"/runs/{row.run.pk}/log"
    readers = [Reader(panel.port, cookie, row.pk, log, stalls) for stalls in [False] * READERS + [True] * STALLED]
    sampler = Sampler({**pids, "shim": shim})
    with following(person, panel.port, row.pk) as page:
        for reader in readers:
            reader.start()
        sampler.start()
        time.sleep(1.5)
        (folder / "plan.tmp").write_text(json.dumps(plan | {"report": str(report)}))
        (folder / "plan.tmp").rename(folder / "plan.json")
        _until(report.exists, page, 300)
        done, written = time.monotonic(), panel.data / "agent" / "jobs" / str(job.pk) / "log"
        _until(
            lambda: JobLog.objects.values_list("size", flat=True).get(pk=job.pk) >= written.stat().st_size, page, 120
        )
        caught_up = time.monotonic() - done
        shown = what_it_shows(page)
        sampler.stop.set()
        sampler.join()
        for reader in readers:
            reader.end()
    memory = {name: (sampler.first[name], most) for name, most in sampler.most.items()}
    found = json.loads(report.read_text())
    return Figures(found, beside, memory, sampler.cpu, compare(job.pk, plan), caught_up, readers, shown)


def _until(what: Any, page: Page | None, seconds: float) -> None:
    """Wait; the browser's events are let through meanwhile."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        if page is not None:
            page.wait_for_timeout(100)
        else:
            time.sleep(0.1)


def main(plan: dict[str, Any] | None = None) -> bool:
    """Print the figures; whether the limits hold."""
    found = measure(plan or PLAN)
    for line in found.lines():
        say(line)
    return found.good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a tenth of it")
    raise SystemExit(0 if main(SHORT if parser.parse_args().short else None) else 1)
