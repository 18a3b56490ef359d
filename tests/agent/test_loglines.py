"""The agent's own log, its jobs' and its door's: no secret in a line, in a traceback, or in what ends a process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from panel.fleet.agent import loglines
from tests.agent.conftest import ROOT

SECRET = "Zq8fW2kLmN4pR7tV0xYb"
TOLD = [
    f"could not fetch https://team:{SECRET}@packages.example.org/simple/vllm/",
    f"proxy https://{SECRET}@proxy.example.org:3128 refused",
    f"HF_TOKEN={SECRET} is not taken",
    f"Authorization: Bearer {SECRET}",
]


def record(text: str) -> logging.LogRecord:
    """A line with a parameter and an exception that both quote a secret."""
    try:
        raise OSError(text)
    except OSError:
        return logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed: %s", (text,), sys.exc_info())


@pytest.mark.parametrize("text", TOLD, ids=["login", "token-as-login", "variable", "header"])
@pytest.mark.parametrize("formatter", [loglines.Plain(), loglines.JsonLine()], ids=["plain", "json"])
def test_lines_hide_secrets(formatter: logging.Formatter, text: str) -> None:
    shown = formatter.format(record(text))
    assert SECRET not in shown and "OSError" in shown and "failed: " in shown
    if isinstance(formatter, loglines.JsonLine):
        assert set(json.loads(shown)) >= {"message", "error", "level"}


CODE = """
import logging, os, sys, threading
from panel.fleet.agent import loglines
{set_up}
log = logging.getLogger("panel.fleet.agent.x")
text = os.environ["TOLD"]
try:
    raise ValueError(text)
except ValueError:
    log.exception("it went wrong: %s", text)
def fail():
    raise OSError(text)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


@pytest.mark.parametrize(
    "set_up", ["loglines.set_up({})", "loglines.set_up({'BERTH_LOG_FORMAT': 'json'})", "loglines.set_up_job()"]
)
def test_a_process_that_fails_tells_no_secret(set_up: str) -> None:
    """A logged failure, one of a thread, and the one that ends the process: three tracebacks."""
    env = {**os.environ, "TOLD": TOLD[0], "PYTHONPATH": str(ROOT)}
    code = CODE.replace("{set_up}", set_up)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    told = done.stdout + done.stderr
    assert done.returncode == 1 and told.count("Traceback") == 3 and told.count("could not fetch") >= 4, told
    assert SECRET not in told


def test_every_process_of_a_host_has_them() -> None:
    """Whoever writes lines of a log on a host does so through these formatters."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("panel/fleet/agent", "panel/fleet/door")
        for path in sorted((ROOT / folder).glob("*.py"))
        if "basicConfig(" in path.read_text(encoding="utf-8") and "loglines" not in Path(path).stem
    ]
    assert found == ["panel/fleet/door/__main__.py"]
    assert "loglines.Plain(" in (ROOT / found[0]).read_text(encoding="utf-8")
