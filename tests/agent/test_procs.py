"""Whose process is it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from panel.fleet.agent import procs
from panel.fleet.agent.procs import Ident, MarkerCache, Stat
from tests.waiting import until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", "import time; time.sleep(600)"],
        start_new_session=True,
        env={"BERTH_JOB": "this-job"},
    )
    yield process
    process.kill()
    process.wait()


def stat(pid: int, *, ppid: int = 1, sid: int = 0, state: str = "S", start: int = 100, threads: int = 1) -> Stat:
    return Stat(pid, state, ppid, sid or pid, sid or pid, threads, start, 10)


def find(stats: list[Stat], markers: dict[int, str] | None = None, **more: object) -> list[int]:
    cache = MarkerCache({(s.pid, s.start): (markers or {}).get(s.pid, "") for s in stats})
    fields = {"shim": None, "engine": None, **more}
    found = procs.members("job", {s.pid: s for s in stats}, cache, **fields)  # type: ignore[arg-type]
    return [ident.pid for ident in found]


def ident(pid: int, start: int = 100) -> Ident:
    return Ident(pid, start, procs.boot_id())


def test_members_by_marker_session_and_parentage() -> None:
    stats = [
        stat(10),  # the shim
        stat(11, ppid=10),  # the engine
        stat(12, ppid=11, sid=11),
        stat(13, ppid=1, sid=11),  # adopted elsewhere, still of its session
        stat(14, ppid=10),  # adopted by the shim, own session
        stat(15, ppid=14),
        stat(16, ppid=1),  # marked
        stat(17, ppid=16),
        stat(18, ppid=1),  # a stranger
        stat(19, ppid=1),  # of another job
    ]
    assert find(stats, {16: "job", 19: "other"}, shim=ident(10), engine=ident(11)) == [11, 12, 13, 14, 15, 16, 17]


def test_reused_pids_are_strangers() -> None:
    stats = [stat(10), stat(11), stat(12, ppid=11, sid=11), stat(13, ppid=10)]
    assert find(stats, shim=ident(10, start=7), engine=ident(11, start=7), known=[ident(12, start=7)]) == []
    other_boot = Ident(11, 100, "another boot")
    assert find(stats, engine=other_boot) == []
    assert find(stats, known=[ident(12)]) == [12]


def test_zombies_are_gone_unless_their_threads_live() -> None:
    stats = [stat(11, state="Z"), stat(12, state="Z", threads=3), stat(13, state="D")]
    assert find(stats, {11: "job", 12: "job", 13: "job"}) == [12, 13]


def test_real_processes(child: subprocess.Popen[bytes]) -> None:
    me = Ident.of(child.pid)
    assert me is not None and me.alive() and Ident.load(me.dump()) == me
    until(lambda: procs.marker_of(child.pid) == "this-job")
    assert not Ident(child.pid, me.start + 1, me.boot).alive()
    assert not procs.send(Ident(child.pid, me.start + 1, me.boot), signal.SIGKILL)
    assert child.poll() is None
    assert procs.send(me, signal.SIGTERM)
    until(lambda: not me.alive())  # a zombie until it is waited for
    assert child.wait() == -signal.SIGTERM
    assert Ident.of(child.pid) is None and not procs.send(me, signal.SIGKILL)


def test_signals_without_pidfd(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", none)
    me = Ident.of(child.pid)
    assert me is not None
    assert not procs.send(Ident(me.pid, me.start - 1, me.boot), signal.SIGKILL)
    assert procs.send(me, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_group_is_signalled_only_while_it_is_the_same(child: subprocess.Popen[bytes]) -> None:
    me = Ident.of(child.pid)
    assert me is not None
    procs.send_group(Ident(me.pid, me.start - 1, me.boot), procs.snapshot(), signal.SIGKILL)
    assert child.poll() is None
    procs.send_group(me, procs.snapshot(), signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_process_name_with_brackets_is_read(tmp_path: object) -> None:
    code = "import time; open('/proc/self/comm','w').write('a) R 1 (b'); print('x', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-IS", "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        found = procs.read_stat(process.pid)
        assert found is not None and found.ppid == os.getpid()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_who_listens(child: subprocess.Popen[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert procs.listens([os.getpid()], port)
        assert not procs.listens([child.pid], port)
    assert not procs.listens([os.getpid()], port)


@pytest.mark.parametrize("value", [None, [], [1, 2], ["1", 2, "b"], [0, 1, "b"], [-5, 1, "b"], {"a": 1}, [1, 2, 3]])
def test_nonsense_names_no_process(value: object) -> None:
    assert Ident.load(value) is None


def test_who_listens_on_a_port_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert procs.listener(port) == "", "bound is not listening"
        server.listen()
        assert procs.listener(port).endswith(f"(process {os.getpid()})")
    assert procs.listener(port) == ""


HOLDS = """
import mmap, sys, time
own = bytearray(b"x") * (96 << 20)
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    total = sum(shared[at] for at in range(0, len(shared), 4096))
print("ready", flush=True)
time.sleep(600)
"""


def test_what_a_process_holds_alone_leaves_out_the_files_that_it_reads(tmp_path: Path) -> None:
    """Weights that are mapped are in the machine's cache, which is free for others when it is wanted."""
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(64 << 20))
    process = subprocess.Popen([sys.executable, "-IS", "-c", HOLDS, str(weights)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        stat = procs.read_stat(process.pid)
        assert stat is not None
        own, all_ = (pages * procs.PAGE >> 20 for pages in (procs.own_pages(process.pid), stat.rss))
        assert 96 <= own < 130 and all_ >= own + 64
    finally:
        process.kill()
        process.communicate()
    assert procs.own_pages(process.pid) == 0, "it is gone"
