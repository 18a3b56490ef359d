"""The Makefile: TERM reaches the panel, and what is absent is named."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.panel.running import ROOT, Panel
from tests.waiting import free_port


@pytest.mark.integration
@pytest.mark.slow
def test_term_to_make_stops_the_panel(tmp_path: Path) -> None:
    panel = Panel(tmp_path / "data", free_port())
    with panel.out.open("wb") as out:
        # -o: what is installed is not looked at
        make = subprocess.Popen(
            ["make", "-o", ".venv/.berth-run", "up"], cwd=ROOT, env=panel.env, stdout=out, stderr=out
        )
    try:
        panel.until(lambda: "Ctrl-C stops it" in panel.said() or make.poll() is not None, 120)
        children = psutil.Process(make.pid).children(recursive=True)
        assert any("manage.py" in " ".join(child.cmdline()) for child in children), panel.said()
        make.send_signal(signal.SIGTERM)
        make.wait(60)
        panel.until(lambda: not [child for child in children if child.is_running()], 60)
        assert "Stopped." in panel.said()
    finally:
        make.kill()
        panel.manage("down")


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A checkout without .venv, as far as the Makefile looks."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    return tmp_path


def run_make(folder: Path, *args: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    assert make
    env = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run([make, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_missing_system_package_is_named(fresh: Path) -> None:
    python = fresh / "python-without-venv"
    python.write_text(f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = run_make(fresh, "up", f"PYTHON={python}")
    assert done.returncode != 0
    assert f"apt install python3.{sys.version_info.minor}-venv" in done.stderr
    assert not (fresh / ".venv").exists()


def test_an_old_python_is_refused(fresh: Path) -> None:
    old = fresh / "bin" / "python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run_make(fresh, "up", path=str(old.parent))
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr


def test_every_command_is_listed() -> None:
    said = run_make(ROOT, "help").stdout
    for command in ("up", "down", "doctor", "check", "test", "bench", "engine", "messages"):
        assert f"make {command} " in said
