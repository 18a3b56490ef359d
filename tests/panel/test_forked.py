"""Programs that begin as copies of their starter: they are what exec would have made, as far as it matters."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import os, signal, sys, threading, time
from pathlib import Path
from panel import forked
from panel.children import OwnerLock
folder = Path(sys.argv[1])
"""


def run(tmp_path: Path, text: str, *, code: int = 0) -> str:
    """A small process that makes copies of itself; its output."""
    argv = [sys.executable, "-c", HEAD + textwrap.dedent(text), str(tmp_path), "room for a longer name than this one"]
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_it_has_its_own_session_log_name_and_exit_code(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
        def program():
            print("pid", os.getpid(), "session", os.getsid(0), os.getcwd(), sys.argv)
            print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").split(b"\\0"))
            print("read", repr(sys.stdin.read()), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
            return 7

        signal.signal(signal.SIGTERM, lambda *_: print("the first one's"))
        with (folder / "log").open("ab") as log:
            copy = forked.fork(program, title=["berth", "-Q", "loop"], log=log, cwd=folder, death_signal="TERM")
        while copy.poll() is None:
            time.sleep(0.01)
        print(copy.pid, copy.returncode, copy.poll())
        """,
    )
    pid, *codes = out.split()
    assert codes == ["7", "7"]
    said = (tmp_path / "log").read_text().splitlines()
    assert said == [
        f"pid {pid} session {pid} {tmp_path} ['berth', '-Q', 'loop']",
        "[b'berth', b'-Q', b'loop']",
        "read '' True",
    ]


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise SystemExit(3)", "3", ""),
        ("raise SystemExit", "0", ""),
        ("raise ValueError('so')", "1", "ValueError: so"),
    ],
)
def test_how_it_ends_is_told(tmp_path: Path, body: str, code: str, said: str) -> None:
    out = run(
        tmp_path,
        f"""
        def program():
            {body}

        with (folder / "log").open("ab") as log:
            copy = forked.fork(program, title=["x"], log=log, cwd=folder, death_signal="TERM")
        while copy.poll() is None:
            time.sleep(0.01)
        print(copy.returncode)
        """,
    )
    assert out.strip() == code and (tmp_path / "log").read_text().rstrip().endswith(said)


def test_told_to_stop_before_it_is_itself_it_does_not_act_as_its_starter(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
        def told(*_):
            (folder / "acted").touch()
            raise KeyboardInterrupt

        for number in forked.TOLD:
            signal.signal(number, told)
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
        with (folder / "log").open("ab") as log:
            copy = forked.fork(lambda: 0, title=["x"], log=log, cwd=folder, death_signal="TERM")
        while copy.poll() is None:
            time.sleep(0.01)
        print(copy.returncode, (folder / "acted").exists())
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            print("the first one hears as before")
        """,
    )
    assert out.splitlines() == ["-15 False", "the first one hears as before"]


def test_it_ends_with_its_starter_and_holds_none_of_its_locks(tmp_path: Path) -> None:
    """The starter is killed, which lets it do nothing any more."""
    out = run(
        tmp_path,
        """
        lock = OwnerLock(folder / "lock")
        lock.take()

        def program():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it lives on, to show what it does not hold
            (folder / "began").write_text(str(os.getpid()))
            time.sleep(60)
            return 0

        with (folder / "log").open("ab") as log:
            forked.fork(program, title=["x"], log=log, cwd=folder, death_signal="USR1")
        while not (folder / "began").exists():
            time.sleep(0.01)
        assert OwnerLock(folder / "lock").owner() == os.getpid(), "a copy that begins does not let go of it"
        print((folder / "began").read_text(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        code=-signal.SIGKILL,
    )
    end = time.monotonic() + 10
    while psutil.pid_exists(int(out)) and psutil.Process(int(out)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it outlives its starter"
        time.sleep(0.01)


def test_a_process_with_threads_makes_no_copies(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
        print(forked.possible())
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        print(forked.possible())
        done.set()
        thread.join()
        print(forked.possible())
        """,
    )
    assert out.split() == ["True", "False", "True"]


def test_nothing_is_loaded_for_all_that_only_tests_or_one_asker_need(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
        import django
        django.setup()
        from panel.supervisor import load_programs
        load_programs()
        few = {"httpx", "rich", "jinja2", "unittest", "django.test", "huggingface_hub"}
        print("too much:", sorted(few & set(sys.modules)))
        import django.test
        from django.test import signals
        print(django.test.Client.__module__, signals.setting_changed is not None)
        """,
    )
    assert out.splitlines() == ["too much: []", "django.test.client True"]
