"""Simulated agents for benchmarks/fleet.py: hundreds of them in one process, each with its two lines to the panel."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

REPORT_S, WAIT_S, JOBS = 10.0, 25, 4


# --- a thin client ----------------------------------------------------------------------------------------------------
class Line:
    """One connection to the panel, kept open; as little work as possible, since the panel shares the machine."""

    def __init__(self, port: int, head: str) -> None:
        self.port, self.head = port, head
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """(status, body). Opens the connection again where the panel closed it."""
        request = (
            f"{method} /agent/v1/{path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        for attempt in (1, 2):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                self._writer.write(request)
                return await self._answer()
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError

    async def _answer(self) -> tuple[int, bytes]:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        if b"content-length:" in head:
            return status, await self._reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        if status != 204:
            self.close()  # an answer of another kind: its end is not known
        return status, b""

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


@dataclass
class Seen:
    """What came out, of all agents."""

    reports: list[float] = field(default_factory=list)  # seconds each took
    polls: int = 0
    errors: list[str] = field(default_factory=list)


class SimAgent:
    """One agent with its two lines; what it is told to run, it runs at once."""

    def __init__(self, number: int, port: int, token: str, seen: Seen, report_s: float = REPORT_S) -> None:
        head = (
            f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nUser-Agent: berth-agent/0.1.0\r\n"
            f"Berth-Wire: 1\r\nBerth-Instance: seat{number}.1\r\nContent-Type: application/json\r\n"
        )
        self.work_line, self.report_line = Line(port, head), Line(port, head)
        self.number, self.seen, self.rev, self.report_s = number, seen, 0, report_s
        self.jobs: dict[str, dict[str, Any]] = {}
        self.news = asyncio.Event()
        self.beats = 0  # reports since the newest work
        self.began = time.time()

    async def run(self) -> None:
        await asyncio.gather(self._work(), self._report())

    async def _work(self) -> None:
        await asyncio.sleep(random.uniform(0, self.report_s))  # they were not all started at once
        while True:
            try:
                status, body = await self.work_line.call("GET", f"work?rev={self.rev}&wait={WAIT_S}")
            except (ConnectionError, OSError, asyncio.IncompleteReadError) as exc:
                self.seen.errors.append(f"work: {exc!r}")
                await asyncio.sleep(1)
                continue
            self.seen.polls += 1
            if status == 200:
                self._converge(json.loads(body))
            elif status != 204:
                self.seen.errors.append(f"work: {status} {body[:200]!r}")
                await asyncio.sleep(1)

    def _converge(self, work: dict[str, Any]) -> None:
        self.rev, self.beats = work["rev"], 0
        for order in work["jobs"]:
            job = self.jobs.setdefault(order["id"], self._started(order))
            if order["desired"] == "stop" and job["state"] == "running":
                job |= {"state": "ended", "ended_at": time.time(), "exit_code": 0, "stop_asked": True, "log_size": 0}
        self.news.set()

    def _started(self, order: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": order["id"],
            "kind": order["task"]["kind"],
            "state": "running",
            "pid": random.randrange(1000, 4_000_000),
            "port": random.randrange(20_000, 30_000),
            "listening": True,
            "argv": order["task"]["argv"],
            "started_at": time.time(),
            "processes": 3,
            "gpu_used_mib": 20_000,
        }

    async def _report(self) -> None:
        await asyncio.sleep(random.uniform(0, self.report_s))
        while True:
            self.news.clear()
            began = time.monotonic()
            try:
                status, body = await self.report_line.call("POST", "report", json.dumps(self._message()).encode())
            except (ConnectionError, OSError, asyncio.IncompleteReadError) as exc:
                self.seen.errors.append(f"report: {exc!r}")
                await asyncio.sleep(1)
                continue
            self.seen.reports.append(time.monotonic() - began)
            self.beats += 1
            if status == 200:
                for job_id in json.loads(body)["forget"]:
                    self.jobs.pop(job_id, None)
            else:
                self.seen.errors.append(f"report: {status} {body[:200]!r}")
            try:
                async with asyncio.timeout(self.report_s):
                    await self.news.wait()
            except TimeoutError:
                continue

    def _message(self) -> dict[str, Any]:
        for job in self.jobs.values():
            if job["state"] == "running":
                moved = {"rss_mib": random.randrange(3000, 3100), "last_output_at": time.time()}
                job |= {**moved, "read_bytes": job.get("read_bytes", 0) + random.randrange(1 << 20)}
        return {
            "agent_version": "0.1.0",
            "instance": f"seat{self.number}.1",
            "sent_at": time.time(),
            "round_trip_s": 0.01,
            "rev": self.rev,
            "facts": self._facts(),
            "jobs": list(self.jobs.values()),
        }

    def _facts(self) -> dict[str, Any]:
        gpu = {"name": "Bench 24 GB", "total_mib": 24_576, "compute_capability": "8.9"}
        return {
            "hostname": f"bench-{self.number}",
            "os": "Linux",
            "kernel": "6.1",
            "machine": "x86_64",
            "cpu_model": "Bench",
            "cpu_count": 64,
            "cpu_flags": ["avx2", "avx512f"],
            "ram_total_mib": 512_000,
            "ram_available_mib": 400_000 + random.randrange(400),
            "disks": [{"path": p, "total_mib": 2_000_000, "free_mib": 900_000 + random.randrange(50)} for p in "/m"],
            "gpus": [self._gpu(index, gpu) for index in range(2)],
            "gpu_driver": "570.1",
            "cuda_driver_version": "12.8",
            "python": "3.11.9",
            "boot_time": 1.0,
            "boot_id": f"boot-{self.number}",
            "agent_started": self.began,
        }

    def _gpu(self, index: int, kind: dict[str, Any]) -> dict[str, Any]:
        moving = {
            "used_mib": 20_000 + random.randrange(64),
            "utilisation_pct": random.randrange(100),
            "temperature_c": random.randrange(50, 80),
            "power_w": random.uniform(100, 300),
        }
        return {**kind, **moving, "index": index, "uuid": f"GPU-{self.number}-{index}"}
