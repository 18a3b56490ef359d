"""Where an order's secrets are on a host: in the engine's own environment, and nowhere else that can be read."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from panel.fleet.agent import procs
from tests.agent.conftest import Host, marked
from tests.waiting import until

KEY = "key-of-this-engine-0123456789"
HUB = "hub_token_of_the_team_0123456789"
CODE = """
print("VLLM_API_KEY" in os.environ, flush=True)
while True: time.sleep(0.05)
"""


def command_lines() -> dict[int, bytes]:
    """What everybody on the host sees with ps."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return found


def test_secrets_are_in_no_command_line_and_in_no_file(host: Host) -> None:
    table, job_id = host.table(), str(uuid.uuid4())
    task = host.task(
        host.engine(CODE), secret_env={"VLLM_API_KEY": KEY, "HF_TOKEN": HUB}, env={"VLLM_LOGGING_LEVEL": "INFO"}
    )
    table.order(job_id, task)
    table.until(job_id, "running")
    (engine, *_rest) = until(lambda: marked(job_id), why="for the engine")
    for secret in (KEY, HUB):
        assert not [pid for pid, line in command_lines().items() if secret.encode() in line]
        assert secret.encode() in Path(f"/proc/{engine}/environ").read_bytes(), "the engine itself has it"
        holders = [
            pid for pid in command_lines()
            if pid != engine and procs.marker_of(pid) != job_id and secret.encode() in _environ(pid)
        ]  # fmt: skip
        assert holders == [], "the shim and the agent's other children do not"
        for path in host.dir.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    status = table.status(job_id)
    assert status is not None and KEY not in status.model_dump_json() and HUB not in status.model_dump_json()


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_what_the_agent_writes_is_for_its_user_alone(host: Host) -> None:
    table, job_id = host.table(), str(uuid.uuid4())
    table.order(job_id, host.task(host.engine(CODE)))
    table.until(job_id, "running")
    for path in [host.dir, *host.dir.rglob("*")]:
        mode = path.lstat().st_mode
        if path.is_symlink() or re.search(r"/(models)(/|$)", str(path)):
            continue
        assert not mode & 0o022, f"{path} can be written by others"
    assert host.dir.stat().st_mode & 0o077 == 0, "nobody else looks in"
    assert os.getuid() == host.dir.stat().st_uid
