"""The shim alone: nothing runs that is not on record, and its exit is on disk before anybody asks."""

from __future__ import annotations

import fcntl
import io
import json
import marshal
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import shim as shim_module
from panel.fleet.agent.procs import boot_id
from panel.fleet.agent.spawn import SHIM
from tests.agent.conftest import marked
from tests.waiting import until


class Shim:
    """One shim in a folder of its own, as the agent starts it."""

    def __init__(self, folder: Path, program: Path = SHIM) -> None:
        self.folder, self.job_id = folder, str(uuid.uuid4())
        self.lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-E", str(program), str(self.lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={},
            pass_fds=[self.lock],
            start_new_session=True,
        )
        os.close(self.lock)

    def spec(self, code: str, argv0: str = sys.executable) -> bytes:
        argv = [argv0, "-IS", "-c", f"import os, sys, time, signal\n{code}"]
        env = {"BERTH_JOB": self.job_id, "SPT_NOENV": "1"}
        return marshal.dumps({"argv": argv, "env": env, "boot": boot_id(), "head": 1 << 20, "tail": 1 << 20})

    def give(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.close()

    def read(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Shim]:
    with running(Shim(tmp_path)) as made:
        yield made


@contextmanager
def running(made: Shim) -> Iterator[Shim]:
    yield made
    made.process.kill()
    made.process.wait()
    for pid in marked(made.job_id):
        os.kill(pid, signal.SIGKILL)
    for stream in (made.process.stdin, made.process.stdout):
        if stream is not None:
            stream.close()


def test_it_records_and_leaves(shim: Shim) -> None:
    shim.give(shim.spec("print('out'); print('err', file=sys.stderr); sys.exit(9)"))
    assert shim.process.wait(20) == 0
    assert sorted((shim.folder / "log").read_text().split()) == ["err", "out"]
    ended = shim.read("exit.json")
    assert (ended["exit_code"], ended["signal"], ended["errno"]) == (9, None, 0)
    assert ended["ended_at"] >= shim.read("run.json")["started_at"]
    assert ended["oom_kills"] in (0, None), "nothing was ended for lack of memory, or the kernel does not tell"
    assert ended["oom_ago_s"] is None
    assert not [path.name for path in shim.folder.iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize("part", [0, 1, 40])
def test_a_half_written_order_starts_nothing(shim: Shim, part: int) -> None:
    shim.give(shim.spec("print('ran')")[:part])
    assert shim.process.wait(20) == 75
    assert sorted(path.name for path in shim.folder.iterdir()) == ["lock"]


def test_killed_before_the_engine_is_on_record_nothing_runs(shim: Shim) -> None:
    os.mkfifo(shim.folder / "run.json.tmp")  # holds the shim right between the fork and the record
    shim.give(shim.spec("print('ran', flush=True); time.sleep(600)"))
    children = Path(f"/proc/{shim.process.pid}/task/{shim.process.pid}/children")
    child = int(until(children.read_text))
    shim.process.kill()
    shim.process.wait()
    until(lambda: not Path(f"/proc/{child}").exists())
    assert (shim.folder / "log").read_text() == "" and shim.read("run.json") is None


def test_what_cannot_be_executed(shim: Shim) -> None:
    shim.give(shim.spec("", argv0="/no/such/file"))
    assert shim.process.wait(20) == 0
    assert shim.read("exit.json")["errno"] == 2


def test_signals_to_the_whole_session_leave_it_alive(shim: Shim) -> None:
    shim.give(shim.spec("time.sleep(600)"))
    pid = until(lambda: shim.read("run.json"))["engine"][0]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(shim.process.pid, number)
    os.kill(pid, signal.SIGTERM)
    assert shim.process.wait(20) == 0
    assert shim.read("exit.json")["signal"] == signal.SIGTERM


def test_a_stop_between_fork_and_exec_is_not_lost(tmp_path: Path) -> None:
    source = SHIM.read_text(encoding="utf-8")
    slow = source.replace("        os.setsid()\n", "        time.sleep(1)\n        os.setsid()\n", 1)
    assert slow != source
    program = tmp_path / "slow.py"
    program.write_text(slow, encoding="utf-8")
    with running(Shim(tmp_path, program)) as shim:
        shim.give(shim.spec("time.sleep(600)"))
        os.kill(until(lambda: shim.read("run.json"))["engine"][0], signal.SIGTERM)
        assert shim.process.wait(20) == 0
        assert shim.read("exit.json")["signal"] == signal.SIGTERM


def test_the_lock_lives_as_long_as_the_shim_and_no_longer(shim: Shim) -> None:
    shim.give(shim.spec("time.sleep(600)"))
    pid = until(lambda: shim.read("run.json"))["engine"][0]
    until(lambda: marked(shim.job_id))
    with (shim.folder / "lock").open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shim.process.kill()
        shim.process.wait()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the engine has no part in it
    assert marked(shim.job_id) == [pid]


def test_no_core_file_and_ordinary_signals(shim: Shim) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0], signal.getsignal(signal.SIGTERM).value)"
    shim.give(shim.spec(code + "; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.listdir('/proc/self/fd'))"))
    assert shim.process.wait(20) == 0
    # 3 is the handle with which the folder itself is listed.
    assert (shim.folder / "log").read_text() == "0 0\nset() ['0', '1', '2', '3']\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "wanted"),
    [
        ("0::/user/berth\n", {"/sys/fs/cgroup/user/berth/memory.events": "oom 4\noom_kill 3\n"}, 3),
        ("0::/docker/x\n", {"/sys/fs/cgroup/memory.events": "oom_kill 1\n"}, 1),
        ("9:memory:/a\n", {"/sys/fs/cgroup/memory/a/memory.oom_control": "under_oom 0\noom_kill 2\n"}, 2),
        ("0::/\n", {"/proc/vmstat": "pgpgin 9\noom_kill 7\n"}, 7),
        ("0::/\n", {"/proc/vmstat": "oom_kill many\n"}, -1),
        ("", {}, -1),
    ],
    ids=["v2", "container", "v1", "machine", "nonsense", "nowhere"],
)
def test_where_the_kernel_counts_what_it_ended(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], wanted: int
) -> None:
    there = {"/proc/self/cgroup": cgroup, **files}

    def opened(name: str, *_rest: Any) -> io.StringIO:
        if name not in there:
            raise FileNotFoundError(name)
        return io.StringIO(there[name])

    monkeypatch.setattr(shim_module, "open", opened, raising=False)
    assert shim_module.oom_kills() == wanted


@pytest.mark.parametrize(
    ("counts", "seconds", "told"),
    [
        ([4, 4, 4], [0.0], ("0", "null")),
        ([4, 5, 5, 5], [100.0, 160.5], ("1", "60.5")),
        ([4, 5, 6, 6], [100.0, 130.0, 131.0], ("2", "1.0")),
        ([4, 4, 5], [200.0, 200.0], ("1", "0.0")),
        ([-1, -1, -1], [0.0], ("null", "null")),
    ],
    ids=["none", "long ago", "two", "found at the end", "not told"],
)
def test_when_the_kernel_ended_something_is_told_as_well(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], seconds: list[float], told: tuple[str, str]
) -> None:
    left, clock = iter(counts), iter(seconds)
    monkeypatch.setattr(shim_module, "oom_kills", lambda: next(left))
    monkeypatch.setattr(shim_module.time, "monotonic", lambda: next(clock))
    kills = shim_module.Kills()
    for _ in counts[2:]:
        kills.look()
    assert kills.told() == told
