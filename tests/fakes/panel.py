"""A small panel that speaks the wire over HTTP on loopback, in this process: for tests of the agent.

It stores logs as the real one does: bytes it has are dropped, a gap is taken only when the agent says that it skipped it.
Faults are ordered by the test: error statuses, replies lost after the bytes were taken, a panel that is away.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from panel.fleet import wire

TOKEN = "fake-host-token"


@dataclass
class StoredLog:
    """`data` holds zeros in the gaps, so that offsets are list positions."""

    data: bytearray = field(default_factory=bytearray)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    uploads: int = 0

    def take(self, offset: int, body: bytes, skipped: int) -> int:
        self.uploads += 1
        size = len(self.data)
        gap = max(0, offset - size)
        if gap and skipped < gap:
            return size
        if gap and body:
            self.gaps.append((size, size + gap))
            self.data += bytes(gap)
            size += gap
        self.data += body[max(0, size - offset) :]
        return len(self.data)


class FakePanel:
    """Start with `with FakePanel() as panel:`; give it to the agent by `panel.url`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rev = 1
        self.orders: dict[str, dict[str, Any]] = {}
        self.raw_work: bytes | None = None  # sent instead of the work, once per poll
        self.reports: list[wire.Report] = []
        self.facts: wire.HostFacts | None = None
        self.statuses: dict[str, wire.JobStatus] = {}
        self.logs: dict[str, StoredLog] = {}
        self.results: dict[str, wire.JobResult] = {}
        self.forget: set[str] = set()
        self.polled_revs: list[int] = []
        self.fault: Callable[[str], int | str | None] = lambda path: None
        self.join_code = ""
        self.door: dict[str, Any] | None = None  # wire.DoorOrder of the work
        handler = type("Handler", (_Handler,), {"panel": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> FakePanel:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        with self.changed:
            self.rev = -1
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()

    # --- what a test says -------------------------------------------------------------------------------------------

    def order(self, task: wire.AnyTask, **more: Any) -> str:
        """Order a job; returns its id."""
        job_id = more.pop("id", None) or str(uuid.uuid4())
        self.set({**self.orders, job_id: {"id": job_id, "task": task.model_dump(), **more}})
        return job_id

    def stop(self, job_id: str, grace_s: float = 5.0) -> None:
        self.set({**self.orders, job_id: {**self.orders[job_id], "desired": "stop", "grace_s": grace_s}})

    def want_door(self, *accepts: str) -> None:
        """Order a door that takes keys of these hashes; none at all: no door."""
        self.door = {"accepts": list(accepts)} if accepts else None
        self.set(self.orders)

    def drop(self, job_id: str) -> None:
        """Leave a job out of the work."""
        self.set({key: value for key, value in self.orders.items() if key != job_id})

    def set(self, orders: dict[str, dict[str, Any]]) -> None:
        with self.changed:
            self.orders = orders
            self.rev += 1
            self.changed.notify_all()

    def work(self) -> dict[str, Any]:
        return {"wire": wire.WIRE_VERSION, "rev": self.rev, "jobs": list(self.orders.values()), "door": self.door}

    # --- what a test waits for --------------------------------------------------------------------------------------

    def wait(self, what: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """Until `what()` is true; its value. Raises AssertionError with all states when it does not become so."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            value = what()
            if value:
                return value
            time.sleep(0.01)
        raise AssertionError(f"waited in vain; statuses: {self.statuses}")

    def log(self, job_id: str) -> bytes:
        """What was shipped of a job's log so far."""
        stored = self.logs.get(job_id)
        return bytes(stored.data) if stored is not None else b""

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 20.0) -> wire.JobStatus:
        def reached() -> wire.JobStatus | None:
            status = self.statuses.get(job_id)
            return status if status is not None and status.state in states else None

        found: wire.JobStatus = self.wait(reached, timeout_s)
        return found


class _Handler(BaseHTTPRequestHandler):
    panel: FakePanel
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        return

    def _reply(self, status: int, body: bytes = b"") -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):  # the agent was killed while it waited
            self.close_connection = True

    def _message(self, message: wire.Message) -> None:
        self._reply(200, message.model_dump_json().encode())

    def _refused(self, path: str) -> bool:
        """Faults and the token. "drop" closes the connection without an answer."""
        fault = self.panel.fault(path)
        if fault == "drop":
            self.close_connection = True
            return True
        if isinstance(fault, int):
            self._reply(fault, b'{"code": "fault"}')
            return True
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and not path.endswith("/join"):
            self._reply(401, b'{"code": "link.token"}')
            return True
        return False

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if self._refused(url.path):
            return
        query = parse_qs(url.query)
        rev, wait = int(query["rev"][0]), float(query["wait"][0])
        panel = self.panel
        with panel.changed:
            panel.polled_revs.append(rev)
            if rev > panel.rev:
                panel.rev = rev + 1
            panel.changed.wait_for(lambda: panel.rev != rev or panel.raw_work is not None, timeout=min(wait, 5.0))
            raw, panel.raw_work = panel.raw_work, None
            work = panel.work() if panel.rev not in (rev, -1) else None
        if raw is not None:
            self._reply(200, raw)
        elif work is None:
            self._reply(204)
        else:
            self._reply(200, json.dumps(work).encode())

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused(url.path):
            return
        parts = url.path.strip("/").split("/")[2:]
        if parts == ["report"]:
            self._report(body)
        elif parts == ["join"]:
            self._join(body)
        elif parts[0] == "jobs" and parts[2] == "log":
            self._log(parts[1], parse_qs(url.query), body)
        elif parts[0] == "jobs" and parts[2] == "result":
            self.panel.results[parts[1]] = wire.JobResult.model_validate_json(body)
            self._reply(204)
        else:
            self._reply(404)

    def _report(self, body: bytes) -> None:
        report = wire.Report.model_validate_json(body)
        panel = self.panel
        panel.reports.append(report)
        panel.facts = report.facts or panel.facts
        for status in report.jobs:
            panel.statuses[status.id] = status
        self._message(wire.ReportReply(rev=panel.rev, forget=sorted(panel.forget)))

    def _join(self, body: bytes) -> None:
        request = wire.JoinRequest.model_validate_json(body)
        if request.code != self.panel.join_code:
            self._reply(403, b'{"code": "join.code"}')
        else:
            self._message(wire.JoinReply(host_id=7, token=TOKEN))

    def _log(self, job_id: str, query: dict[str, list[str]], body: bytes) -> None:
        assert len(body) <= wire.MAX_LOG_CHUNK
        stored = self.panel.logs.setdefault(job_id, StoredLog())
        size = stored.take(int(query["offset"][0]), body, int(query["skipped"][0]))
        if self.panel.fault("reply " + self.path) == "drop":  # the bytes are here, the agent does not get to know
            self.close_connection = True
            return
        self._message(wire.LogReply(size=size))
